-- Shared by the scripts that run two verbs in one step; stands after the verbs, which are wrapped into functions of their names.

-- list[first..last] as a list of its own.
local function slice(list, first, last)
  local part = {}
  for i = first, last do
    part[i - first + 1] = list[i]
  end
  return part
end
