#!lua
-- admit_take: admit, and if the lead is new, take. For a single server, where one step may touch several partitions.
--
-- KEYS admit's, then take's
-- ARGV 1 number of admit's keys  2 number of admit's arguments; then admit's arguments, then take's
-- Replies {admit's reply} | {admit's reply, take's reply}

local keys, arguments = tonumber(ARGV[1]), tonumber(ARGV[2])
local admitted = admit(slice(KEYS, 1, keys), slice(ARGV, 3, 2 + arguments))
if admitted[1] ~= 'new' then
  return { admitted }
end
return { admitted, take(slice(KEYS, keys + 1, #KEYS), slice(ARGV, 3 + arguments, #ARGV)) }
