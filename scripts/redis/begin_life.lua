#!lua flags=allow-oom
-- begin_life: makes a life the partition's own if it has none or an older one. Counters of data older than the life prove
-- nothing, so they are forgotten and count as unseeded (P8).
--
-- KEYS 1 life  2 windows  3.. the counters that `windows` names
-- ARGV 1 life  then per counter: field of `windows`, window start ms
-- Replies {'life', life in force}
--         {'again'}  `windows` is not what the caller read: read it again

local stored = redis.call('GET', KEYS[1])
if stored and le(ARGV[1], stored) then
  return { 'life', stored }
end
if redis.call('HLEN', KEYS[2]) ~= #KEYS - 2 then
  return { 'again' }
end
for c = 3, #KEYS do
  if redis.call('HGET', KEYS[2], ARGV[2 * c - 4]) ~= ARGV[2 * c - 3] then
    return { 'again' }
  end
end
for c = 3, #KEYS do
  redis.call('DEL', KEYS[c])
end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1])
return { 'life', ARGV[1] }
