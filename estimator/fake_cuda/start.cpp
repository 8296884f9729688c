// Starts the tracer in every Python of a dry run, however that is started: `env -i`, `python -I`, `-E`, `-S`, an
// overwritten PYTHONPATH or LD_PRELOAD change nothing. The contained file system names this library in
// /etc/ld.so.preload, so each program loads it; in all but Python it only notes which files are read (opened.cpp)
// and has the stand-ins executed that lie in the folder `bin` beside that of this library (programs.cpp).
//
// Python's own way in is an audit hook (PEP 578), which may be added before the interpreter is initialised. The
// first event that comes with a working interpreter is the import of `site`; with -S, the start of the program.
//
// A file `start` beside this library holds the path of the Python code to run; on the next line, what that code finds
// as `configuration`; and on a third, if files are to be noted, where.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "opened.h"
#include "programs.h"

namespace {

struct Object;  // a PyObject

template <typename Function>
bool find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// The few functions of the stable API that running a piece of code takes.
struct Python {
  Object* (*dict_new)();
  int (*dict_set)(Object*, const char*, Object*);
  Object* (*text_new)(const char*);
  Object* (*tuple_item)(Object*, long);
  const char* (*text_of)(Object*);
  Object* (*builtins)();
  Object* (*compile)(const char*, const char*, int);
  Object* (*evaluate)(Object*, Object*, Object*);
  void (*error_clear)();
  void (*error_print)();
  void (*release)(Object*);
  bool found() {
    return find(dict_new, "PyDict_New") && find(dict_set, "PyDict_SetItemString") &&
           find(text_new, "PyUnicode_DecodeFSDefault") && find(tuple_item, "PyTuple_GetItem") &&
           find(text_of, "PyUnicode_AsUTF8") && find(builtins, "PyEval_GetBuiltins") &&
           find(compile, "Py_CompileString") && find(evaluate, "PyEval_EvalCode") &&
           find(error_clear, "PyErr_Clear") && find(error_print, "PyErr_Print") && find(release, "Py_DecRef");
  }
};

Python g_python;
bool g_started = false;
char g_code[4096], g_configuration[4096], g_notes[4096];

bool read_line(FILE* file, char* line, int size) {
  if (!std::fgets(line, size, file)) return false;
  line[std::strcspn(line, "\n")] = '\0';
  return *line != '\0';
}

bool read_order() {
  Dl_info here{};
  if (!dladdr(&g_started, &here) || !here.dli_fname) return false;
  char path[4096];
  const char* const slash = std::strrchr(here.dli_fname, '/');
  const int folder = slash ? static_cast<int>(slash - here.dli_fname) : 0;
  if (std::snprintf(path, sizeof path, "%.*s/start", folder, here.dli_fname) >= static_cast<int>(sizeof path))
    return false;
  FILE* const file = std::fopen(path, "re");
  if (!file) return false;
  const bool whole =
      read_line(file, g_code, sizeof g_code) && read_line(file, g_configuration, sizeof g_configuration);
  if (whole && read_line(file, g_notes, sizeof g_notes)) {
    note_opened_files(g_notes);
    std::snprintf(path, sizeof path, "%.*s", folder, here.dli_fname);
    if (char* const last = std::strrchr(path, '/')) {
      *last = '\0';
      replace_programs(path);
    }
  }
  std::fclose(file);
  return whole;
}

void set(Object* names, const char* name, const char* value) {
  Object* const text = g_python.text_new(value);
  if (!text) return;
  g_python.dict_set(names, name, text);
  g_python.release(text);
}

// The user's program goes on whatever happens in here.
void start_tracer() {
  constexpr int whole_file = 257;  // Py_file_input
  Object* const names = g_python.dict_new();
  if (names) {
    g_python.dict_set(names, "__builtins__", g_python.builtins());
    set(names, "code", g_code);
    set(names, "configuration", g_configuration);
    Object* const code = g_python.compile(
        "with open(code, encoding='utf-8') as file:\n    text = file.read()\n"
        "exec(compile(text, code, 'exec'), {'__name__': '_gpumem_start', '__file__': code,"
        " 'configuration': configuration})\n",
        "<gpumem>", whole_file);
    Object* const result = code ? g_python.evaluate(code, names, names) : nullptr;
    if (!result) g_python.error_print();
    if (result) g_python.release(result);
    if (code) g_python.release(code);
    g_python.release(names);
  }
  g_python.error_clear();
}

int heard(const char* event, Object* arguments, void*) {
  if (g_started) return 0;
  bool now = std::strncmp(event, "cpython.run_", 12) == 0;
  if (!now && std::strcmp(event, "import") == 0) {
    Object* const name = g_python.tuple_item(arguments, 0);
    const char* const text = name ? g_python.text_of(name) : nullptr;
    if (!text) g_python.error_clear();
    now = text && std::strcmp(text, "site") == 0;
  }
  if (now) {
    g_started = true;
    start_tracer();
  }
  return 0;
}

__attribute__((constructor)) void loaded() {
  int (*add_hook)(int (*)(const char*, Object*, void*), void*);
  if (read_order() && find(add_hook, "PySys_AddAuditHook") && g_python.found()) add_hook(heard, nullptr);
}

}  // namespace
