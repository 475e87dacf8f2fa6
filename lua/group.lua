-- Decides a group of buckets, all or nothing.
--
-- KEYS   one per bucket, distinct, at least one
-- ARGV   six per bucket:
--   1    algorithm: tb (token bucket), sw (sliding window), fw (fixed window), cw (counting window)
--   2    op: take (spend if it fits), charge (record what was used), peek (would it fit), refund (give back)
--   3    cost, > 0
--   4-6  tb: capacity in tokens; n and s of a refill of n tokens per s seconds
--        others: limit; window in microseconds; the window start that a refund is for, 0: the current one
--        and after those of the last bucket, or missing: milliseconds that what is written lives beyond its use
--
-- When a take, charge or peek does not fit, no take spends and no refund is paid. Charges are recorded all the same,
-- and so are the takes of a counting window that do not fit.
-- The time is the server's. Everything is read and computed before the first write, and every write sets an expiry.
--
-- Returns one string, fields separated by a space: seconds and microseconds of the server's time; 1 (everything
-- fitted) or 0, with +healed behind it when unreadable values were overwritten; and per bucket what its key held:
-- the value, - (nothing, or a value of another type) or ? (unreadable, taken for nothing).
local values = redis.call('MGET', unpack(KEYS))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local argv = ARGV

-- The slots of the first and third argument take what is to be written, and for how long. + 0 reads a number with
-- less ado than tonumber, a global that is looked up and called.
local allowed = true
for i = 1, #values do
  local a = 6 * i - 5
  local stored = values[i]
  local fits, readable, value, ttl
  if argv[a] == 'tb' then
    fits, readable, value, ttl = token_bucket(stored, now, argv[a + 1], argv[a + 2] + 0, argv[a + 3] + 0,
      argv[a + 4] + 0, argv[a + 5] + 0)
  elseif argv[a] == 'sw' then
    fits, readable, value, ttl = sliding_window(stored, now, argv[a + 1], argv[a + 2] + 0, argv[a + 3] + 0,
      argv[a + 4] + 0, argv[a + 5] + 0)
  elseif argv[a] == 'fw' or argv[a] == 'cw' then
    local counting = argv[a] == 'cw'
    fits, readable, value, ttl = fixed_window(stored, now, argv[a + 1], argv[a + 2] + 0, argv[a + 3] + 0,
      argv[a + 4] + 0, argv[a + 5] + 0, counting)
    if counting and not fits then
      argv[a + 1] = 'charge'
    end
  else
    return redis.error_reply('ERR sentinel: unknown algorithm')
  end
  argv[a] = value
  argv[a + 2] = ttl
  allowed = allowed and fits
  if not readable then
    values[i] = stored and '?' or '-'
  end
end

local extra = argv[6 * #values + 1]
if extra then
  for i = 1, #values do
    local a = 6 * i - 5
    if argv[a] then
      argv[a + 2] = argv[a + 2] + extra
    end
  end
end

local healed = 0
for i = 1, #values do
  local a = 6 * i - 5
  if argv[a] and (allowed or argv[a + 1] == 'charge') then
    if values[i] ~= '-' then
      redis.call('SET', KEYS[i], argv[a], 'PX', string.format('%d', argv[a + 2]))
      if values[i] == '?' then
        healed = healed + 1
      end
    -- NX fails where MGET read nothing only when a value of another type is in the way.
    elseif not redis.call('SET', KEYS[i], argv[a], 'PX', string.format('%d', argv[a + 2]), 'NX') then
      redis.call('SET', KEYS[i], argv[a], 'PX', string.format('%d', argv[a + 2]))
      healed = healed + 1
    end
  end
end

local status = allowed and ' 1' or ' 0'
if healed > 0 then
  status = string.format('%s+%d', status, healed)
end
return time[1] .. ' ' .. time[2] .. status .. ' ' .. table.concat(values, ' ')
