-- Shared by every script; stands between its first line and the rest.
--
-- Counters, money, versions and lives are decimal strings and are compared as such, because a Lua number is a double and
-- loses digits above 2^53 (F15). Only times in milliseconds become numbers.

-- The server's clock, in milliseconds.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A number of milliseconds as text without an exponent.
local function ms_text(ms)
  return string.format('%.0f', ms)
end

-- a <= b, for non-negative whole decimals without leading zeros.
local function le(a, b)
  return #a < #b or (#a == #b and a <= b)
end

-- a <= b, for journal entry ids.
local function id_le(a, b)
  local a_ms, a_seq = a:match('^(%d+)%-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)%-(%d+)$')
  if a_ms ~= b_ms then
    return le(a_ms, b_ms)
  end
  return le(a_seq, b_seq)
end

-- Throws before anything was written when a counter holds something else than a whole number.
local function checked_count(value)
  if not value:find('^%-?%d+$') then
    error({ err = 'BROKEN a counter holds no number' })
  end
  return value
end

-- What the counters from KEYS[first] to KEYS[last] hold, by their place in KEYS; false for one that is gone. Throws as above.
local function counts_from(KEYS, first, last)
  local used = {}
  for c = first, last do
    local value = redis.call('GET', KEYS[c])
    used[c] = value and checked_count(value)
  end
  return used
end

-- Takes units off a counter that holds `value`: never below zero, and nothing off one that an operator's hand made negative.
local function lower(key, value, units)
  if value:sub(1, 1) ~= '-' then
    redis.call('DECRBY', key, le(units, value) and units or value)
  end
end

-- Under which id the server writes its history. A restart, a promotion and every other server have another one; read once in
-- a call, because it costs some microseconds.
local history
local function server()
  if not history then
    history = redis.call('INFO', 'replication'):match('master_replid:(%x+)') or ''
  end
  return history
end

-- What the life key says, "<life>|<server it was begun on>|<open or closed>": the life, whether this is that server, the
-- state. Data that was copied, rolled back or loaded again is of another server, and proves nothing (P8).
local function standing(key)
  local number, born_on, state = (redis.call('GET', key) or ''):match('^(%d+)|(%x+)|(%a+)$')
  return number, number ~= nil and born_on == server(), state
end

-- May something be granted under this life?
local function is_open(key, life)
  local number, is_here, state = standing(key)
  return number == life and is_here and state == 'open'
end

-- May what has happened be written down under this life?
local function is_here(key, life)
  local number, here = standing(key)
  return number == life and here
end

-- What a person's mark says of the life it is asked under: the lead by which the buyer has the person ('' for none) and since
-- when, ms. A mark is "<lead>|<since ms>|<life>"; one of another life says nothing.
local function person_of(key, life)
  local lead, since, of = (redis.call('GET', key) or ''):match('^([^|]*)|(%d+)|(%d+)$')
  if of == life then
    return lead, since
  end
end

-- Has everybody been marked whom the buyer had within so many days? The key says "<life>|<days>".
local function is_marked(key, life, days)
  local of, marked = (redis.call('GET', key) or ''):match('^(%d+)|(%d+)$')
  return of == life and le(days, marked)
end

-- What an attempt's new state does to its person's mark. keep: the buyer has the person, or may have. free: it has not; that is
-- remembered for a while, because the books may still say otherwise. A mark of another lead stays.
local function note_person(key, life, lead, verb, since, expires)
  local owner, now = person_of(key, life), now_ms()
  if verb == 'free' and (not owner or owner == lead) then
    redis.call('SET', key, '|' .. ms_text(now) .. '|' .. life, 'PX', '600000')
  elseif verb == 'keep' and (not owner or owner == '') and tonumber(expires) > now then
    redis.call('SET', key, lead .. '|' .. since .. '|' .. life, 'PX', ms_text(tonumber(expires) - now))
  end
end

-- The answer of a lead, nil while it has none, and which lead its record belongs to. `record` may be that of its claim.
local function answer_of(record, own_record, lead)
  local own = own_record ~= record and redis.call('HGET', own_record, 'a')
  local found = redis.call('HMGET', record, 'l', 'a')
  return own or (found[1] == lead and found[2]) or nil, found[1]
end

-- The newest entry of a journal; '0-0' for an empty one.
local function newest(journal)
  local last = redis.call('XREVRANGE', journal, '+', '-', 'COUNT', 1)
  return last[1] and last[1][1] or '0-0'
end

-- Appends an event with its effects on usage ('' for none); answers the entry's id.
local function append(journal, event, effects)
  if effects == '' then
    return redis.call('XADD', journal, '*', 'e', event)
  end
  return redis.call('XADD', journal, '*', 'e', event, 'fx', effects)
end
