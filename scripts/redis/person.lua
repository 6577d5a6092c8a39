#!lua flags=no-writes
-- person: has a buyer a person, by its mark?
--
-- KEYS 1 life  2 dup:<buyer>:<digest>  3 marked:<buyer>
-- ARGV 1 life  2 days
-- Replies {'had', lead, since ms} | {'free'} | {'unknown'} the books have to be asked | {'life'}

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local owner, since = person_of(KEYS[2], ARGV[1])
if owner and owner ~= '' and now_ms() - tonumber(since) < tonumber(ARGV[2]) * 86400000 then
  return { 'had', owner, since }
end
return { (owner or is_marked(KEYS[3], ARGV[1], ARGV[2])) and 'free' or 'unknown' }
