#!lua
-- seed: sets counters of one buyer that are missing to settled usage + effects of journal entries after the mark + what open
-- leases hold, all read in this one step. Never touches a counter that is there.
--
-- KEYS 1 life  2 windows  3 leases:<buyer>  4 journal:<life>  5 trimmed:<life>  6.. one counter each
-- ARGV 1 life  2 mark's entry id  3 most entries to read  4 buyer
--      then per counter: cap, window start ms, usage, expires at ms or ''
-- Replies {'seeded'}
--         {'stale'}   the journal was trimmed beyond the mark, or has too many entries after it
--         {'life'}

if not is_open(KEYS[1], ARGV[1]) then
  return { 'life' }
end
if is_trimmed_beyond(KEYS[5], ARGV[2]) then
  return { 'stale' }
end

-- Signed changes per missing counter, by "<buyer>|<cap>|<window start>".
local now, changes, missing = now_ms(), {}, {}
for c = 6, #KEYS do
  local a = 4 + (c - 6) * 4
  if not redis.call('GET', KEYS[c]) then
    local name = ARGV[4] .. '|' .. ARGV[a + 1] .. '|' .. ARGV[a + 2]
    changes[name] = { ARGV[a + 3] }
    missing[c] = name
  end
end

if next(missing) then
  if not read_tail(KEYS[4], ARGV[2], tonumber(ARGV[3]), changes) then
    return { 'stale' }
  end
  read_leases(KEYS[3], ARGV[4], changes)
end

for c = 6, #KEYS do
  local a = 4 + (c - 6) * 4
  local expires_at = ARGV[a + 4]
  -- A window that is over for good gets no key: its expiry would lie in the past.
  if missing[c] and (expires_at == '' or now < tonumber(expires_at)) then
    redis.call('SET', KEYS[c], '0')
    for _, change in ipairs(changes[missing[c]]) do
      -- The server adds: 64 bits, exact.
      redis.call('INCRBY', KEYS[c], change)
    end
    if redis.call('GET', KEYS[c]):sub(1, 1) == '-' then
      redis.call('SET', KEYS[c], '0')
    end
    if expires_at ~= '' then
      redis.call('PEXPIREAT', KEYS[c], expires_at)
    end
  end
  local field = ARGV[4] .. '|' .. ARGV[a + 1]
  local newest = redis.call('HGET', KEYS[2], field)
  if not newest or not le(ARGV[a + 2], newest) then
    redis.call('HSET', KEYS[2], field, ARGV[a + 2])
  end
end
return { 'seeded' }
