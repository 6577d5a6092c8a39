#!lua flags=allow-oom
-- commit_close: commit, and if the lease was open, close. For a single server, where one step may touch several partitions.
-- A lead that another walk has answered is not sold a second time: its commit writes the event of a late yes, which books
-- nothing (P6).
--
-- KEYS commit's, then close's
-- ARGV 1 number of commit's keys  2 number of commit's arguments; then commit's arguments, then close's
-- Replies {commit's reply} | {commit's reply, close's reply} | {commit's reply, close's reply, 'late'} with the late event

local keys, arguments = tonumber(ARGV[1]), tonumber(ARGV[2])
local commit_arguments = slice(ARGV, 3, 2 + arguments)
local close_keys, close_arguments = slice(KEYS, keys + 1, #KEYS), slice(ARGV, 3 + arguments, #ARGV)
local is_late = answer_of(close_keys[2], close_keys[3], close_arguments[2])
  and redis.call('HEXISTS', KEYS[3], commit_arguments[2]) == 1
if is_late then
  commit_arguments[7] = commit_arguments[8]
end
local committed = commit(slice(KEYS, 1, keys), commit_arguments)
if committed[1] ~= 'done' then
  return { committed }
end
return { committed, close(close_keys, close_arguments), is_late and 'late' or nil }
