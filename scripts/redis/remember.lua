#!lua flags=allow-oom
-- remember: sets the end mark of a lease whose mark has expired, from what the books know. Changes nothing while there is a
-- lease or a mark, so that it is safe to run twice, and against a late answer that was faster.
--
-- KEYS 1 lease:<lead>:<buyer> (end mark)  2 leases:<buyer>
-- ARGV 1 lead  2 state: committed, refunded or doubt  3 end mark's time to live ms  4 not_after ms
-- Replies 1 set, 0 there was a lease or a mark, -1 not_after has passed: the caller's knowledge may be older than a mark that
--         has come and gone since

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 or redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
if now_ms() > tonumber(ARGV[4]) then
  return -1
end
-- Without the name of a call: whoever asks next finds a state, never the effect of its own first try.
redis.call('SET', KEYS[1], ARGV[2] .. '||', 'PX', ARGV[3])
return 1
