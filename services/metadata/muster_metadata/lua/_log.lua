-- Begins every script on a log. KEYS: log, promise, acknowledged position, identity of the node.
-- ARGV: identity expected, epoch, nonce of the claim, then what the script needs; last of all the run of the
-- server that the connection is to; empty: the caller does not count the answer as a vote. After it come those of its runs
-- that were without an append-only file; `?`: the other nodes were not asked for them yet.
local log, promise, acknowledged, node = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local identity, epoch, nonce = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local run, doubted = string.match(table.remove(ARGV), '^(%S*) ?(.*)$')

-- What stands here was not written by a script of ours: the node says nothing about this log.
local function damaged(what)
  error('DAMAGED: ' .. what, 0)
end

local function last_entry()
  local found = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
  if found then return found[1], found[2][6] or damaged('the last entry is none') end
end

local function first_id()
  return redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1][1]
end

local function hash_at(id)
  local found = redis.call('XRANGE', log, id, id)[1]
  return found and found[2][6]
end

local function parts(id)
  local dash = string.find(id, '-', 1, true)
  return tonumber(string.sub(id, 1, dash - 1)), tonumber(string.sub(id, dash + 1))
end

local function later(a, b)
  local a_epoch, a_offset = parts(a)
  local b_epoch, b_offset = parts(b)
  return a_epoch > b_epoch or (a_epoch == b_epoch and a_offset > b_offset)
end

local function acknowledged_id()
  local stored = redis.call('GET', acknowledged)
  if stored and not string.match(stored, '^%d+%-%d+$') then damaged('the acknowledged position is none') end
  return stored
end

local function acknowledge(id)
  local stored = acknowledged_id()
  if id ~= '' and (not stored or later(id, stored)) then redis.call('SET', acknowledged, id) end
end

-- A number as a script wrote it: digits alone, and one that is exact here.
local function count(text)
  local number = string.match(text, '^%d+$') and tonumber(text)
  return number and number <= 9007199254740991 and number
end

-- The promise: epoch, nonce, the epoch as text, the floor (no other claim at or below it), the run it is from.
local function promised()
  local held = redis.call('HMGET', promise, 'epoch', 'nonce', 'floor', 'run')
  if not held[1] then return end
  local at, floor = count(held[1]), count(held[3] or '0')
  if not at or not floor or not held[2] then damaged('the promise is none') end
  return at, held[2], held[1], floor, held[4]
end

-- Whether this node may have forgotten what it said last: it restarted since it last voted on this log, and what
-- it wrote then was not synced at once (a run that was so is marked), or that run ended without a file. A run that is not
-- known is not judged.
local function forgetful(mark)
  if run == '' or not mark or mark == '' or mark == run then return false end
  local mark_id, mark_synced = string.match(mark, '^([^/]*)(.*)$')
  if mark_id == string.match(run, '^[^/]*') then return false end
  if mark_synced ~= '/always' then return true end
  if doubted == '?' then error('UNVETTED', 0) end
  return string.find(' ' .. doubted .. ' ', ' ' .. mark_id .. ' ', 1, true) ~= nil
end

-- Why this node has no such log, or nothing. A log is never made here.
local function absent()
  local found = redis.call('HGET', node, 'identity')
  if not found then return {'NOLOG', 'empty'} end
  if found ~= identity then return {'NOLOG', 'foreign', found} end
  if redis.call('EXISTS', promise) == 0 or redis.call('XLEN', log) == 0 then return {'NOLOG', 'lost'} end
end

-- Why this node does not vote on this log, or nothing, and then what it promised.
local function abstention()
  local missing = absent()
  if missing then return missing end
  local held, held_nonce, text, floor, mark = promised()
  if forgetful(mark) then return {'RESTARTED', string.format('%d', math.max(held, floor))} end
  return nil, held, held_nonce, text, floor, mark
end

-- Why the caller may not write here, or nothing: the promise must be exactly the caller's.
local function refusal()
  local reason, held, held_nonce, text, floor, mark = abstention()
  if reason then return reason end
  if held > epoch or (held == epoch and held_nonce ~= nonce) then return {'FENCED', text} end
  if held < epoch then return {'UNPROMISED', text} end
  return nil, floor, mark
end

-- A server that is out of memory (`maxmemory`) refuses a command that may take more of it, except in a script that
-- has written before: it cannot stop in the middle. To remove a field that there never is counts as written, on every
-- version of Redis and Valkey. Promises pass so, which are replaced and do not grow.
local function pass()
  redis.call('HDEL', promise, '')
end

-- So does what makes room, gives a shard an owner, or helps with either: up to a tenth above `maxmemory`.
local function use_reserve()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return end
  local used, most = string.match(info, 'used_memory:(%d+)'), string.match(info, 'maxmemory:(%d+)')
  if used and most and (most == '0' or tonumber(used) <= tonumber(most) * 1.1) then pass() end
end

-- Stores the run in which the node holds its promise, together with a write.
local function note_run(mark)
  if run ~= '' and mark ~= run then redis.call('HSET', promise, 'run', run) end
end

local function write(first)
  for i = first, #ARGV, 4 do
    redis.call('XADD', log, ARGV[i], 'r', ARGV[i + 1], 'n', ARGV[i + 2], 'h', ARGV[i + 3])
  end
end

-- Whether a snapshot has all of its parts: the list of their hashes is stored last.
local function whole(snapshot)
  local hashes = redis.call('HGET', snapshot, 'hashes')
  return hashes and redis.call('HLEN', snapshot) == #hashes / 32 + 1
end
