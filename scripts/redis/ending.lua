-- Shared by commit, confirm, refund, expire and doubt; stands after the prelude.
--
-- KEYS 1 life  2 lease:<lead>:<buyer> (end mark)  3 leases:<buyer>  4 due  5 journal:<life>  6.. one counter per charge,
--      and where 9 says something dup:<buyer>:<digest>
-- ARGV 1 life  2 lead  3 buyer  4 name of this call  5 end mark's time to live ms  6 charges as they were taken
--      7 event for an open lease  8 event for a lease that had ended otherwise
--      9 what becomes of the person's mark: keep, free or ''  10 since when, ms  11 when the mark expires, ms
--      then per state that the verb can change, in the verb's order: effects for the journal, and one signed change per
--      counter
-- Replies {'done', entry id}           the lease was open
--         {'late', was, entry id, counters}  it had ended otherwise and this call changed that; where it charged units again,
--                                      every counter right after it, joined by ',' ('0' for one that is gone), else ''
--         {'already', mark, entry id}  nothing was changed
--         {'missing'}                  neither record nor mark
--         {'life'}                     the data is of another life: what it says of a lease proves nothing
-- The entry is the one that was appended; where this call appended none, the newest.
-- An end mark is "<state>|<name of the call>|<state before, '' for open>|<counters>"; the same call asked again finds its name
-- there and answers what it did (F20).

local function finish(KEYS, ARGV, to, from_states)
  if not is_here(KEYS[1], ARGV[1]) then
    return { 'life' }
  end
  local person = ARGV[9] ~= '' and KEYS[#KEYS]
  local counters_end = person and #KEYS - 1 or #KEYS
  local record = redis.call('HGET', KEYS[3], ARGV[2])
  local from = 'open'
  if not record then
    local mark = redis.call('GET', KEYS[2])
    if not mark then
      return { 'missing' }
    end
    local state, by, was, counters = mark:match('^(%a+)|([^|]*)|(%a*)|?([^|]*)$')
    if by == ARGV[4] then
      return was == '' and { 'done', newest(KEYS[5]) } or { 'late', was, newest(KEYS[5]), counters }
    end
    from = state
  end
  local block
  for index, state in ipairs(from_states) do
    if state == from then
      block = 11 + (index - 1) * (counters_end - 4)
    end
  end
  if not block then
    return { 'already', from, newest(KEYS[5]) }
  end
  if record and record:match('^[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)\n') ~= ARGV[6] then
    return redis.error_reply('BROKEN charges are not those of the lease')
  end
  local used = counts_from(KEYS, 6, counters_end)
  if person then
    redis.call('GET', person)
  end
  redis.call('XLEN', KEYS[5])

  -- First, because `due` is the one key not read above: were it broken, nothing would have been written (F06).
  if record then
    redis.call('ZREM', KEYS[4], ARGV[2] .. ':' .. ARGV[3])
    redis.call('HDEL', KEYS[3], ARGV[2])
  end
  -- Read back in this very step: a look from outside would count units of other late yeses, too.
  local counters, is_charged = {}, from == 'refunded' and to == 'committed'
  for c = 6, counters_end do
    local value, change = used[c], ARGV[block + c - 4]
    -- A counter that is gone belongs to a finished window, or waits for a seed that will read this event (F01).
    if value and change ~= '0' then
      if change:sub(1, 1) == '-' then
        lower(KEYS[c], value, change:sub(2))
      else
        redis.call('INCRBY', KEYS[c], change)
      end
    end
    counters[c - 5] = is_charged and (redis.call('GET', KEYS[c]) or '0') or nil
  end
  local was = record and '' or from
  counters = table.concat(counters, ',')
  redis.call('SET', KEYS[2], table.concat({ to, ARGV[4], was, counters }, '|'), 'PX', ARGV[5])
  if person then
    note_person(person, ARGV[1], ARGV[2], ARGV[9], ARGV[10], ARGV[11])
  end
  local id = append(KEYS[5], record and ARGV[7] or ARGV[8], ARGV[block + 1])
  return was == '' and { 'done', id } or { 'late', was, id, counters }
end
