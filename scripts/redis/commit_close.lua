#!lua flags=allow-oom
-- commit_close: commit, and if the lease was open, close. For a single server, where one step may touch several partitions.
--
-- KEYS commit's, then close's
-- ARGV 1 number of commit's keys  2 number of commit's arguments; then commit's arguments, then close's
-- Replies {commit's reply} | {commit's reply, close's reply}

local keys, arguments = tonumber(ARGV[1]), tonumber(ARGV[2])
local committed = commit(slice(KEYS, 1, keys), slice(ARGV, 3, 2 + arguments))
if committed[1] ~= 'done' then
  return { committed }
end
return { committed, close(slice(KEYS, keys + 1, #KEYS), slice(ARGV, 3 + arguments, #ARGV)) }
