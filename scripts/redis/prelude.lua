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
