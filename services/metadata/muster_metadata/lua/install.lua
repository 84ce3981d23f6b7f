-- Puts a complete copy in the place of a log that is gone, or that ends before the oldest entry of the
-- others, together with the promise. KEYS[5]: the copy. ARGV[4], ARGV[5]: id and hash of its end; ARGV[6], ARGV[7]: the exact end
-- of the log here, empty: it must be gone; ARGV[8]: acknowledged position; ARGV[9]: when the cluster was
-- made, ARGV[10]: addresses of the nodes, for a node that lost its identity too; ARGV[11]: the highest floor of the others;
-- ARGV[12]: the run. KEYS[6]: the mark of a log that is gone.
local copy = KEYS[5]
local found = redis.call('HGET', node, 'identity')
if found and found ~= identity then return {'NOLOG', 'foreign', found} end
if ARGV[6] == '' then
  if not absent() then return {'MISMATCH', last_entry()} end
else
  local refused = refusal()
  if refused then return refused end
  local id, hash = last_entry()
  if id ~= ARGV[6] or hash ~= ARGV[7] then return {'MISMATCH', id, hash} end
end
local end_entry = redis.call('XREVRANGE', copy, '+', '-', 'COUNT', 1)[1]
if not end_entry or end_entry[1] ~= ARGV[4] or end_entry[2][6] ~= ARGV[5] then return {'MISMATCH', '0-0', ''} end
local held, _, _, floor = promised()
if held and held > epoch then return {'FENCED', tostring(held)} end
redis.call('RENAME', copy, log)
floor = string.format('%d', math.max(floor or 0, tonumber(ARGV[11])))
redis.call('HSET', promise, 'epoch', ARGV[2], 'nonce', nonce, 'tag', '', 'floor', floor, 'run', ARGV[12])
redis.call('DEL', KEYS[6])
redis.call('SET', acknowledged, ARGV[8])
if not found then redis.call('HSET', node, 'identity', identity, 'created_at_ms', ARGV[9], 'nodes', ARGV[10]) end
return {'OK', ARGV[4], ARGV[5]}
