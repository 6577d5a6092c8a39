#!lua flags=no-writes
-- life: what the partition's data says of itself, and which server says it.
--
-- KEYS 1 life  2 unread  3 journal:<life>
-- Reply   {life or '', '1' when this is the server it was begun on else '0', 'open', 'closed' or '', server,
--          place up to which leads have been read back from the books or '', last entry ever appended to the journal given,
--          last entry that it holds}

local number, here, state = standing(KEYS[1])
local tip = '0-0'
if redis.call('EXISTS', KEYS[3]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[3])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      tip = info[i + 1]
    end
  end
end
return { number or '', here and '1' or '0', state or '', server(), redis.call('GET', KEYS[2]) or '', tip,
  newest(KEYS[3]) }
