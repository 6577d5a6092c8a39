#!lua
-- admit: claims a lead's key, records the lead as open and appends "received". One publisher's partition.
--
-- KEYS 1 life  2 record: idem:<publisher>:<hash>, or lead:<publisher>:<lead> for a lead without a claim
--      3 lead:<publisher>:<lead>  4 open  5 open_info  6 journal:<life>  7 unread
-- ARGV 1 life  2 lead  3 claim hash or ''  4 fingerprint or ''  5 deadline ms  6 not_after ms  7 record expires at ms
--      8 most entries of this journal  9 open info  10 event
-- Replies {'new', entry id}           ours to route; also when the very same call is repeated, then with the newest entry
--         {'running', lead}           another try, or this lead in other hands by now
--         {'finished', lead, answer}
--         {'reused'}                  same key, other body
--         {'unread'}                  not known here, but not all claims have been read back from the books: ask them
--         {'full'} {'late'} {'life'}  nothing was changed
-- Has no allow-oom: a full server must refuse new work before anything is written (P7).

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
local record = redis.call('HMGET', KEYS[2], 'l', 'f', 'a', 'n')
if record[1] then
  local is_ours = record[1] == ARGV[2]
  if not is_ours and record[2] and record[2] ~= '' and ARGV[4] ~= '' and record[2] ~= ARGV[4] then
    return { 'reused' }
  end
  if record[3] then
    return { 'finished', record[1], record[3] }
  end
  -- A moved deadline says that recovery has taken the lead over: then a repeat must not start a second walk (P3).
  local deadline = is_ours and redis.call('ZSCORE', KEYS[4], ARGV[2])
  if deadline and tonumber(deadline) == tonumber(ARGV[5]) then
    return { 'new', newest(KEYS[6]) }
  end
  return { 'running', record[1] }
end
if now_ms() > tonumber(ARGV[6]) then
  return { 'late' }
end
-- The mark `n` says that the books do not know the key.
if not record[4] and ARGV[3] ~= '' and redis.call('EXISTS', KEYS[7]) == 1 then
  return { 'unread' }
end
if redis.call('XLEN', KEYS[6]) >= tonumber(ARGV[8]) then
  return { 'full' }
end
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[3])

redis.call('ZADD', KEYS[4], ARGV[5], ARGV[2])
redis.call('HSET', KEYS[5], ARGV[2], ARGV[9])
redis.call('HSET', KEYS[2], 'l', ARGV[2], 'f', ARGV[4])
redis.call('PEXPIREAT', KEYS[2], ARGV[7])
if KEYS[3] ~= KEYS[2] then
  redis.call('HSET', KEYS[3], 'c', ARGV[3])
  redis.call('PEXPIREAT', KEYS[3], ARGV[7])
end
return { 'new', redis.call('XADD', KEYS[6], '*', 'e', ARGV[10]) }
