#!lua flags=allow-oom
-- begin_life: makes a life the partition's own, on this server and closed, if it has none or one that is older or of another
-- server. Counters of older data prove nothing: they are forgotten and count as unseeded (P8). Events of older data go on in
-- the new life's journal, to be settled from its beginning (P5).
--
-- KEYS 1 life  2 unread  3 windows  4 journal:<new life>  5 journal:<old life>  6 trimmed:<old life>  7.. the counters that
--      `windows` names
-- ARGV 1 life  2 the server it was raised for  3 the life key as the caller read it, '' for none
--      then per counter: field of `windows`, window start ms
-- Replies {'life', life in force on this server}
--         {'elsewhere'}  the life was raised for another server
--         {'again'}      life key or `windows` are not what the caller read: read them again

if server() ~= ARGV[2] then
  return { 'elsewhere' }
end
local number, here = standing(KEYS[1])
if here and le(ARGV[1], number) then
  return { 'life', number }
end
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[3] or redis.call('HLEN', KEYS[3]) ~= #KEYS - 6 then
  return { 'again' }
end
for c = 7, #KEYS do
  if redis.call('HGET', KEYS[3], ARGV[2 * c - 10]) ~= ARGV[2 * c - 9] then
    return { 'again' }
  end
end

for c = 7, #KEYS do
  redis.call('DEL', KEYS[c])
end
redis.call('DEL', KEYS[3], KEYS[6])
if KEYS[5] ~= KEYS[4] and redis.call('EXISTS', KEYS[5]) == 1 then
  redis.call('RENAME', KEYS[5], KEYS[4])
end
-- Claims that are not known any more are read back from the books, from the oldest on.
redis.call('SET', KEYS[2], '0')
redis.call('SET', KEYS[1], ARGV[1] .. '|' .. server() .. '|closed')
return { 'life', ARGV[1] }
