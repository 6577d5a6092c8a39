#!lua flags=no-writes
-- tip: id of the last entry ever appended to a journal, trimmed or not.
--
-- KEYS 1 journal:<life>
-- Reply   id, '0-0' when there never was one

if redis.call('EXISTS', KEYS[1]) == 0 then
  return '0-0'
end
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then
    return info[i + 1]
  end
end
return redis.error_reply('BROKEN no last-generated-id')
