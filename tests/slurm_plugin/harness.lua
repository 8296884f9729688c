-- Loads job_submit.lua outside slurmctld and submits one job; prints what became of it.
-- Arguments: job_submit.lua, name of a field or variable that refuses to be written ("" for none), anything to have
-- the variables of the memory guard printed.
local lines = {}
slurm = {
  SUCCESS = 0,
  log_info = function(format, ...) lines[#lines + 1] = "info " .. string.format(format, ...) end,
  log_error = function(format, ...) lines[#lines + 1] = "error " .. string.format(format, ...) end,
  log_user = function(format, ...) lines[#lines + 1] = "user " .. string.format(format, ...) end,
}
dofile(arg[1])
local values = {
  user_id = 1000, script = "#!/bin/bash\npython $DATA ${OTHER:-x}\n", tres_per_node = "gres:gpu:1", argc = 2,
  argv = { [0] = "/x/train.sh", [1] = "a" }, begin_time = 0, shared = 65534, num_tasks = 4294967294, min_nodes = 1,
  environment = { PATH = "/bin", DATA = "data", OTHER = "other", UNUSED = "unused", SLURM_GPUS = "1" },
}
values.environment = setmetatable({}, {
  __index = values.environment,
  __newindex = function(_, name, value)
    if name == arg[2] then error("cannot write " .. name) end
    rawset(getmetatable(values.environment).__index, name, value)
  end,
})
local job = setmetatable({}, {
  __index = values,
  __newindex = function(_, field, value)
    if field == arg[2] then error("cannot write " .. field) end
    values[field] = value
  end,
})
local code = slurm_job_submit(job, { cpu = { flag_default = 0 }, gpu = { flag_default = 1 } }, 1000)
print("code " .. tostring(code))
for _, field in ipairs({ "tres_per_node", "tres_per_job", "begin_time", "admin_comment" }) do
  print(field .. " " .. tostring(values[field]))
end
print("SLURM_GPUS " .. tostring(values.environment.SLURM_GPUS) .. ";")
for _, name in ipairs({ "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PATH" }) do
  if arg[3] then print(name .. " " .. tostring(values.environment[name]) .. ";") end
end
for _, line in ipairs(lines) do print(line) end
