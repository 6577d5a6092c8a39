#!lua
-- marked: everybody has been marked whom a buyer had within so many days, as far as the books knew. From here on a person
-- without a mark is nobody's.
--
-- KEYS 1 life  2 marked:<buyer>
-- ARGV 1 life  2 days
-- Replies {'done'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if not is_marked(KEYS[2], ARGV[1], ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[1] .. '|' .. ARGV[2])
end
return { 'done' }
