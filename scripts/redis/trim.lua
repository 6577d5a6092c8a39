#!lua flags=allow-oom
-- trim: forgets journal entries up to and including the mark's, and writes down how far. The emptied stream stays, because its
-- last id must not be forgotten.
--
-- KEYS 1 journal:<life>  2 trimmed:<life>
-- ARGV 1 mark's entry id  2 the id after it
-- Reply   entries forgotten

local trimmed = redis.call('GET', KEYS[2])
local forgotten = redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2])
if not trimmed or not id_le(ARGV[1], trimmed) then
  redis.call('SET', KEYS[2], ARGV[1])
end
return forgotten
