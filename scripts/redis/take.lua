#!lua
-- take: tries candidates in order and opens a lease of the first with room in all its caps.
-- On a cluster all candidates of one call are of one partition; on a single server they may be of several.
--
-- KEYS per group (partition): life, due, windows, versions; then per candidate: lease:<lead>:<buyer> (end mark),
--      leases:<buyer>, for a candidate with days dup:<buyer>:<digest> and marked:<buyer>, and one counter per demand
-- ARGV 1 lead  2 not_after ms  3 refusals of candidates tried in earlier calls  4 number of groups  5 number of candidates
--      then per group: life, '' when the gateway knows none
--      then per candidate: index, group from 1, buyer, routing version, lease_for ms, about, charges, days within
--      which the buyer wants nobody twice or '', number of demands, and per demand: cap, window start ms, window end ms or '', amount, most that the counter may be before, expires at
--      ms or ''
-- Reply   {index of the candidate taken or '', '1' when too late else '0', refusals, when the lease was taken, ms}
-- A refusal is "<index> <letter> ...": F <cap> <used> full, W <store clock ms> wrong window, Z <cap> <start ms>
-- <end ms> another window of the cap runs, U <cap> unseeded, S <newest
-- version> stale, E <mark> ended, O another walk of the lead holds it, L other life, D <lead> <since ms> the buyer has the
-- person by another lead, B the books have to be asked about the person; refusals are joined by ';'. W, Z, U, S, L and B can
-- be cured and end the call. `about` names the walk that asks: "walk":"<hex digits>".
-- Has no allow-oom: a full server must refuse new work before anything is written (P7).

local lead, not_after, refused = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local group_count, candidate_count = tonumber(ARGV[4]), tonumber(ARGV[5])

local DAY_MS = 86400000

local function refuse(text)
  refused = refused == '' and text or refused .. ';' .. text
end

local groups, k, a = {}, 0, 5
for g = 1, group_count do
  local life = ARGV[a + g]
  groups[g] = {
    life = life,
    due = KEYS[k + 2],
    windows = KEYS[k + 3],
    versions = KEYS[k + 4],
    is_known = life ~= '' and is_open(KEYS[k + 1], life),
  }
  k = k + 4
end
a = a + group_count

-- A repeat of the call must find its own lease before it tries anybody else, or it would take a second one (F20). A lease of
-- another walk is not its own, or both would post the lead (P4).
local candidates = {}
for i = 1, candidate_count do
  local c = {
    index = ARGV[a + 1], group = groups[tonumber(ARGV[a + 2])], buyer = ARGV[a + 3], version = ARGV[a + 4],
    lease_for = tonumber(ARGV[a + 5]), about = ARGV[a + 6], charges = ARGV[a + 7], days = ARGV[a + 8],
    demands = tonumber(ARGV[a + 9]), argv = a + 9, mark = KEYS[k + 1], leases = KEYS[k + 2],
  }
  k = k + 2
  if c.days ~= '' then
    c.person, c.marked = KEYS[k + 1], KEYS[k + 2]
    k = k + 2
  end
  c.keys = k
  candidates[i] = c
  a = a + 9 + 6 * c.demands
  k = k + c.demands
  if c.group.is_known then
    local record = redis.call('HGET', c.leases, lead)
    local walk = c.about:match('"walk":"%x+"')
    if record and walk and not record:find(walk, 1, true) then
      c.is_underway = true
    elseif record then
      local taken_at, refusals = record:match('^[^\n]*\n([^\n]*)\n[^\n]*\n[^\n]*\n([^\n]*)\n')
      return { c.index, '0', refusals, taken_at }
    end
  end
end

local now = now_ms()
if now > not_after then
  return { '', '1', refused, '' }
end

local seen_versions = {}

-- Why a candidate cannot be taken, or nil; then `c.used` and `c.newest` are set.
local function reason(c)
  local group = c.group
  if not group.is_known then
    return 'L'
  end
  if c.is_underway then
    return 'O'
  end
  local mark = redis.call('GET', c.mark)
  if mark then
    return 'E ' .. mark:match('^%a+')
  end
  local newest_version = redis.call('HGET', group.versions, c.buyer)
  if newest_version and not le(newest_version, c.version) then
    return 'S ' .. newest_version
  end
  if newest_version ~= c.version then
    -- Kept even when a cap refuses: an older routing must not grant after a newer one was used (F86).
    seen_versions[#seen_versions + 1] = { group.versions, c.buyer, c.version }
  end
  if c.person then
    local owner, since = person_of(c.person, group.life)
    if not owner and not is_marked(c.marked, group.life, c.days) then
      return 'B'
    end
    -- By the rule in force now: a mark may have been made under a longer one.
    if owner and owner ~= '' and owner ~= lead and now - tonumber(since) < tonumber(c.days) * DAY_MS then
      return table.concat({ 'D', owner, since }, ' ')
    end
  end
  if c.demands == 0 then
    return nil
  end
  local counters, fields, end_fields = {}, {}, {}
  for d = 1, c.demands do
    local at = c.argv + 6 * (d - 1)
    if now < tonumber(ARGV[at + 2]) or (ARGV[at + 3] ~= '' and now >= tonumber(ARGV[at + 3])) then
      return 'W ' .. ms_text(now)
    end
    counters[d] = KEYS[c.keys + d]
    fields[d] = c.buyer .. '|' .. ARGV[at + 1]
    end_fields[d] = fields[d] .. '|end'
  end
  c.fields = fields
  c.newest = redis.call('HMGET', group.windows, unpack(fields))
  c.ends = redis.call('HMGET', group.windows, unpack(end_fields))
  for d = 1, c.demands do
    -- A zone that was changed in mid-window adds no capacity: what has counted until now counts on to its end (F33).
    local at, newest, newest_end = c.argv + 6 * (d - 1), c.newest[d], c.ends[d]
    if newest and newest_end then
      local is_same = ARGV[at + 2] == newest and ARGV[at + 3] == newest_end
      local begins_in_it = tonumber(ARGV[at + 2]) < tonumber(newest_end)
      local ends_after_it_began = ARGV[at + 3] == '' or tonumber(newest) < tonumber(ARGV[at + 3])
      if not is_same and begins_in_it and ends_after_it_began then
        return table.concat({ 'Z', ARGV[at + 1], newest, newest_end }, ' ')
      end
    end
  end
  for d = 1, c.demands do
    local at = c.argv + 6 * (d - 1)
    local used, newest = redis.call('GET', counters[d]), c.newest[d]
    if not used then
      -- Only a window that follows a known one starts at zero; a counter that was deleted does not.
      if not newest or le(ARGV[at + 2], newest) then
        return 'U ' .. ARGV[at + 1]
      end
      used = '0'
    end
    checked_count(used)
    if used:sub(1, 1) == '-' then
      return 'U ' .. ARGV[at + 1]
    end
    if ARGV[at + 5]:sub(1, 1) == '-' or not le(used, ARGV[at + 5]) then
      return 'F ' .. ARGV[at + 1] .. ' ' .. used
    end
  end
  return nil
end

local taken
for i = 1, candidate_count do
  local why = reason(candidates[i])
  if not why then
    taken = candidates[i]
    break
  end
  refuse(candidates[i].index .. ' ' .. why)
  -- The order of candidates is a promise: nobody further on is asked while this one may yet turn out to have room.
  if why:find('^[LWZUSB]') then
    break
  end
end

if taken then
  local deadline = ms_text(now + taken.lease_for)
  -- First, because `due` is the one key not read above: were it broken, nothing would have been written (F06).
  redis.call('ZADD', taken.group.due, deadline, lead .. ':' .. taken.buyer)
  redis.call('HSET', taken.leases, lead,
    table.concat({ '0', ms_text(now), deadline, taken.charges, refused, taken.about }, '\n'))
  if taken.person then
    redis.call('SET', taken.person, lead .. '|' .. ms_text(now) .. '|' .. taken.group.life, 'PX',
      ms_text(tonumber(taken.days) * DAY_MS))
  end
  for d = 1, taken.demands do
    local at, counter = taken.argv + 6 * (d - 1), KEYS[taken.keys + d]
    redis.call('INCRBY', counter, ARGV[at + 4])
    if ARGV[at + 6] ~= '' then
      redis.call('PEXPIREAT', counter, ARGV[at + 6])
    end
    local newest = taken.newest[d]
    if not newest or not le(ARGV[at + 2], newest) then
      redis.call('HSET', taken.group.windows, taken.fields[d], ARGV[at + 2])
    end
    if ARGV[at + 3] == '' then
      redis.call('HDEL', taken.group.windows, taken.fields[d] .. '|end')
    elseif taken.ends[d] ~= ARGV[at + 3] and (not newest or le(newest, ARGV[at + 2])) then
      redis.call('HSET', taken.group.windows, taken.fields[d] .. '|end', ARGV[at + 3])
    end
  end
end
for _, seen in ipairs(seen_versions) do
  redis.call('HSET', seen[1], seen[2], seen[3])
end
return { taken and taken.index or '', '0', refused, taken and ms_text(now) or '' }
