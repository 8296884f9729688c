-- gpumem's job_submit plug-in: asks gpumemd whether a batch job may share its GPU.
--
-- Runs inside slurmctld under its locks, so every answer has to come at once, and whatever goes wrong the job
-- passes as its user wrote it. Install beside slurm.conf with JobSubmitPlugins=lua.
-- Needs, for the Lua that slurmctld is linked to (5.1 or newer): lua-socket, lua-cjson.

local SOCKET_PATH = os.getenv("GPUMEM_SUBMIT_SOCKET") or "/run/gpumem/submit.sock"
local DEADLINE_S = 0.050       -- for connecting, sending and receiving together
local QUIET_FACTOR = 100       -- after a fault nobody is asked for so many times what the fault cost: 50 ms -> 5 s
local MAX_REPLY = 64 * 1024    -- bytes
local MAX_SCRIPT = 256 * 1024
local MAX_ARGUMENTS = 64 * 1024
local MAX_VALUE = 32 * 1024    -- of one environment variable
local MAX_ENVIRONMENT = 256 * 1024
local MAX_NAMES = 300

local OPT_OUT = "gpumem=off"   -- sbatch --comment=gpumem=off

-- Request fields by type. Slurm marks numbers that were not set by special values, by width.
local TEXTS = {
  "user_name", "partition", "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket", "mem_per_tres",
  "cpus_per_tres", "tres_freq", "tres_bind", "comment", "name", "account", "qos", "features", "array_inx", "work_dir",
}
local NUMBERS_16 = { "shared", "ntasks_per_node", "ntasks_per_tres" }
local NUMBERS_32 = { "num_tasks", "min_nodes", "max_nodes", "het_job_offset" }
local UNSET_16, UNSET_32 = 65534, 4294967294

local GPU_FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local WRITABLE = { "tres_per_node", "tres_per_job", "tres_per_task" }
local EXPORTABLE = { "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF" }   -- the memory guard

-- What a script's run depends on most often; names that the script itself mentions are added.
local VARIABLES = {
  "PATH", "HOME", "SHELL", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE",
  "PYTHONNOUSERSITE", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_EXE", "CONDA_SHLVL",
  "CONDA_PYTHON_EXE", "CONDA_ENVS_PATH", "MAMBA_EXE", "MAMBA_ROOT_PREFIX", "PYENV_ROOT", "PYENV_VERSION", "UV_PYTHON",
  "MODULEPATH", "MODULESHOME", "MODULES_CMD", "LOADEDMODULES", "_LMFILES_", "LMOD_CMD", "LMOD_DIR", "LMOD_PKG",
  "BASH_ENV", "HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
  "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "TMPDIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
  "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUBLAS_WORKSPACE_CONFIG",
  "CUBLASLT_WORKSPACE_SIZE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE", "TORCHDYNAMO_DISABLE",
  "CUDA_HOME", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "WANDB_MODE", "WANDB_DISABLED",
}

local has_socket, socket = pcall(require, "socket")
local has_unix, unix = pcall(require, "socket.unix")
local has_json, json = pcall(require, "cjson.safe")
local usable = has_socket and has_unix and has_json
local quiet_until = 0

if not usable then
  slurm.log_error("gpumem: lua-socket or lua-cjson is not installed; all jobs pass unchanged")
end

local function asks_for_gpu(job)
  for _, field in ipairs(GPU_FIELDS) do
    local value = job[field]
    if type(value) == "string" and value:find("gpu", 1, true) then return true end
  end
  return false
end

local function default_partition(partitions)
  for name, partition in pairs(partitions) do
    if partition.flag_default == 1 then return name end
  end
end

-- argv counts from 0 inside slurmctld. Returns nil when it is longer than what is sent.
local function arguments_of(job)
  local list, size = {}, 0
  for index = 0, (job.argc or 0) - 1 do
    local value = job.argv[index]
    if type(value) ~= "string" then return nil end
    size = size + #value
    list[#list + 1] = value
  end
  if size > MAX_ARGUMENTS then return nil end
  return list
end

-- The environment can only be read name by name.
local function environment_of(job, script)
  local environment, size, names = {}, 0, 0
  local function add(name)
    if names >= MAX_NAMES or environment[name] then return end
    local value = job.environment[name]
    if type(value) ~= "string" or #value > MAX_VALUE then return end
    if size + #name + #value > MAX_ENVIRONMENT then return end
    environment[name], size, names = value, size + #name + #value, names + 1
  end
  for _, name in ipairs(VARIABLES) do add(name) end
  local mentioned = 0
  for name in script:gmatch("%$%{?[#!]?([%a_][%w_]*)") do
    mentioned = mentioned + 1
    if mentioned > 4 * MAX_NAMES then break end
    add(name)
  end
  return environment
end

local function question_about(job, partitions)
  local question = { v = 1, uid = job.user_id }
  for _, field in ipairs(TEXTS) do
    local value = job[field]
    if type(value) == "string" and value ~= "" then question[field] = value end
  end
  for _, field in ipairs(NUMBERS_16) do
    local value = job[field]
    if type(value) == "number" and value < UNSET_16 then question[field] = value end
  end
  for _, field in ipairs(NUMBERS_32) do
    local value = job[field]
    if type(value) == "number" and value < UNSET_32 then question[field] = value end
  end
  local begin_time = job.begin_time
  if type(begin_time) == "number" and begin_time > 0 then question.begin_time = begin_time end
  question.partition = question.partition or default_partition(partitions)
  local arguments = arguments_of(job)
  if #job.script > MAX_SCRIPT or not arguments then
    question.too_long = true
  else
    question.script = job.script
    if #arguments > 0 then question.argv = arguments end   -- an empty Lua table would become a JSON object
    question.environment = environment_of(job, job.script)
  end
  return question
end

-- One HTTP/1.0 exchange. Returns the body of the answer; or nil, what went wrong, and whether gpumemd itself
-- is well (it refused this one question in time).
local function exchange(body)
  local deadline = socket.gettime() + DEADLINE_S
  local connection = (type(unix) == "table" and unix.stream or unix)()
  local function remaining()
    local left = deadline - socket.gettime()
    if left <= 0 then return false end
    connection:settimeout(left, "t")
    return true
  end
  local function fault(text) connection:close() return nil, text end

  remaining()
  local connected, problem = connection:connect(SOCKET_PATH)
  if not connected then return fault("connect: " .. tostring(problem)) end

  local request = "POST /v1/submissions HTTP/1.0\r\nHost: gpumemd\r\nContent-Type: application/json\r\n"
    .. "Content-Length: " .. #body .. "\r\n\r\n" .. body
  local position = 1
  while position <= #request do
    if not remaining() then return fault("no answer in time (sending)") end
    local last, send_problem, partly = connection:send(request, position)
    if not last and send_problem ~= "timeout" then return fault("send: " .. tostring(send_problem)) end
    position = (last or partly or position - 1) + 1
  end

  local parts, size = {}, 0
  while true do
    if not remaining() then return fault("no answer in time") end
    local data, receive_problem, partly = connection:receive(4096)
    local got = data or partly or ""
    size = size + #got
    if size > MAX_REPLY then return fault("answer too long") end
    parts[#parts + 1] = got
    if receive_problem == "closed" then break end
    if receive_problem and receive_problem ~= "timeout" then return fault("receive: " .. receive_problem) end
  end
  connection:close()

  local answer = table.concat(parts)
  local head, answer_body = answer:match("^(.-)\r\n\r\n(.*)$")
  local status = head and head:match("^HTTP/1%.%d (%d%d%d)")
  if not status then return nil, "answer is not HTTP" end
  if status ~= "200" then return nil, "status " .. status .. ": " .. answer_body:sub(1, 200):gsub("%c", " "), true end
  return answer_body
end

local function ask(job, partitions)
  local body, problem = json.encode(question_about(job, partitions))
  if not body then return nil, "cannot be written as JSON: " .. tostring(problem) end
  local answer, fault, well = exchange(body)
  if not answer then return nil, fault, well end
  local reply = json.decode(answer)
  if type(reply) ~= "table" or type(reply.action) ~= "string" or type(reply.decision_id) ~= "string" then
    return nil, "answer is not understood"
  end
  return reply
end

-- Writes the answer into the job; if that fails half way, what was written is taken back.
local function apply(job, reply)
  local before, exported = {}, {}
  local applied, problem = pcall(function()
    if type(reply.set) == "table" then
      for _, field in ipairs(WRITABLE) do
        local value = reply.set[field]
        if type(value) == "string" then
          before[field] = job[field] or ""
          job[field] = value                                -- "" clears; nil would be an error
        end
      end
    end
    if type(reply.begin_in_s) == "number" and reply.begin_in_s > 0 then
      before.begin_time = job.begin_time or 0
      job.begin_time = math.max(before.begin_time, os.time() + math.floor(reply.begin_in_s))
    end
    if type(reply.admin_comment) == "string" then job.admin_comment = reply.admin_comment end
    if type(reply.environment) == "table" then
      for name, value in pairs(reply.environment) do        -- only blanks what is there
        if type(value) == "string" and job.environment[name] then job.environment[name] = value end
      end
    end
    if type(reply.export) == "table" then
      for _, name in ipairs(EXPORTABLE) do
        local value = reply.export[name]
        if type(value) == "string" then
          exported[name] = job.environment[name] or ""
          job.environment[name] = value
        end
      end
    end
  end)
  if not applied then
    for name, value in pairs(exported) do pcall(function() job.environment[name] = value end) end
    for field, value in pairs(before) do pcall(function() job[field] = value end) end
  end
  return applied, problem
end

local function advise(job, partitions)
  local started = socket.gettime()
  if started < quiet_until then return end
  local called, reply, problem, well = pcall(ask, job, partitions)
  if not called then reply, problem = nil, reply end
  if reply then
    local applied, apply_problem = apply(job, reply)
    if not applied then reply, problem = nil, apply_problem end
  end
  local now = socket.gettime()
  local cost = now - started
  if not reply then
    if not well then quiet_until = now + QUIET_FACTOR * math.min(cost, DEADLINE_S) end
    slurm.log_info("gpumem: decision=none action=pass user=%d ms=%.1f fault=%s", job.user_id, cost * 1000,
      tostring(problem))
    return
  end
  slurm.log_info("gpumem: decision=%s action=%s user=%d ms=%.1f", reply.decision_id, reply.action,
    job.user_id, cost * 1000)
  if type(reply.message) == "string" then slurm.log_user("gpumem: %s", reply.message) end
end

function slurm_job_submit(job, partitions, submit_uid)
  pcall(function()
    if not usable or job.script == nil then return end      -- batch jobs only
    if not asks_for_gpu(job) then return end
    if type(job.comment) == "string" and job.comment:find(OPT_OUT, 1, true) then
      slurm.log_info("gpumem: decision=none action=pass user=%d ms=0.0 reason=opted out", job.user_id)
      return
    end
    advise(job, partitions)
  end)
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
