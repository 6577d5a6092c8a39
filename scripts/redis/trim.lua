#!lua flags=allow-oom
-- trim: forgets journal entries up to and including the mark's, and writes down how far. The emptied stream stays, because its
-- last id must not be forgotten.
--
-- KEYS 1 life  2 journal:<life>  3 trimmed:<life>
-- ARGV 1 life  2 mark's entry id  3 the id after it
-- Reply   entries forgotten; none on a server that the life was not begun on, because the mark counts another one's entries

if not is_here(KEYS[1], ARGV[1]) then
  return 0
end
local trimmed = redis.call('GET', KEYS[3])
local forgotten = redis.call('XTRIM', KEYS[2], 'MINID', '=', ARGV[3])
if not trimmed or not id_le(ARGV[2], trimmed) then
  redis.call('SET', KEYS[3], ARGV[2])
end
return forgotten
