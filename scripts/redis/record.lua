#!lua flags=allow-oom
-- record: appends an event that changes no unit. Asked twice it appends twice, which the books do not mind: an event moves
-- a row forward or not at all.
--
-- KEYS 1 life  2 journal:<life>
-- ARGV 1 life  2 event
-- Replies {'done', entry id} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
return { 'done', append(KEYS[2], ARGV[2], '') }
