#!lua
-- bring_persons: what the books know of persons whom a buyer may have had. What is known of a person here stays, unless the
-- books know it by the same lead, or by a newer one: then its mark lives as long as the rule in force says.
--
-- KEYS 1 life, then dup:<buyer>:<digest> per person
-- ARGV 1 life, then per person: lead, '' when the books know of none  since ms  when the mark expires, ms
-- Replies {'done'} | {'life'}

if not is_here(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local now = now_ms()
for p = 2, #KEYS do
  local lead, since, expires = ARGV[3 * p - 4], ARGV[3 * p - 3], tonumber(ARGV[3 * p - 2])
  local owner, known_since = person_of(KEYS[p], ARGV[1])
  local is_news = not owner or (owner ~= '' and lead ~= '' and (owner == lead or not le(since, known_since)))
  if is_news and expires > now then
    redis.call('SET', KEYS[p], lead .. '|' .. since .. '|' .. ARGV[1], 'PX', ms_text(expires - now))
  end
end
return { 'done' }
