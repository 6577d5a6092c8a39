#!lua flags=allow-oom
-- record: appends an event that changes no unit. Asked twice it appends twice, which the books do not mind: an event moves
-- a row forward or not at all.
--
-- KEYS 1 life  2 journal:<life>, and where 3 says something dup:<buyer>:<digest>
-- ARGV 1 life  2 event  3 what becomes of the person's mark: keep, free or ''; then lead, since when, ms, and when the mark
--      expires, ms
-- Replies {'done', entry id} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if ARGV[3] ~= '' then
  note_person(KEYS[3], ARGV[1], ARGV[4], ARGV[3], ARGV[5], ARGV[6])
end
return { 'done', append(KEYS[2], ARGV[2], '') }
