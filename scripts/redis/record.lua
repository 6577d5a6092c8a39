#!lua flags=allow-oom
-- record: appends an event that changes no unit. Asked twice it appends twice, which the books do not mind: an event moves
-- a row forward or not at all.
--
-- KEYS 1 life  2 journal:<life>
-- ARGV 1 life  2 event
-- Replies {'done'}
--         {'life', life}     the partition's life is another one, '' for none: ask again with its journal

local life = redis.call('GET', KEYS[1])
if life ~= ARGV[1] then
  return { 'life', life or '' }
end
redis.call('XADD', KEYS[2], '*', 'e', ARGV[2])
return { 'done' }
