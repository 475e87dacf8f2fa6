-- Decides groups of buckets, one after the other, each all or nothing.
--
-- KEYS   one per bucket, at least one; a group's are distinct and stand together
-- ARGV   milliseconds that what is written lives beyond its use; then for each run of groups that are alike:
--   1    how many groups
--   2    how many buckets each of them has, at least one
--   and six for each bucket of such a group:
--   1    algorithm: tb (token bucket), sw (sliding window), fw (fixed window), cw (counting window)
--   2    op: take (spend if it fits), charge (record what was used), peek (would it fit), refund (give back)
--   3    cost, > 0
--   4-6  tb: capacity in tokens; n and s of a refill of n tokens per s seconds
--        others: limit; window in microseconds; the window start that a refund is for, 0: the current one
--
-- When a take, charge or peek of a group does not fit, none of its takes spends and none of its refunds is paid. Its
-- charges are recorded all the same, and so are the takes of a counting window that do not fit.
-- The time is the server's. Everything is read before the first write; a group goes by what those before it wrote, is
-- computed before its first write, and every write sets an expiry.
--
-- Returns one string, fields separated by a space: seconds and microseconds of the server's time; per group 1
-- (everything fitted) or 0, with +healed behind it when unreadable values were overwritten, or ! (the server refused to
-- write); and per bucket what the group found: the value, - (nothing, or a value of another type) or ? (unreadable,
-- taken for nothing). Where the server refused to write, an array of that string and of the words of the refusal.
local values = redis.call('MGET', unpack(KEYS))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local argv = ARGV

-- + 0 reads a number with less ado than tonumber, a global that is looked up and called.
local extra = argv[1] + 0
local statuses, refusal = {}, nil
local first, spec = 1, 2
local write, always, ttls, written = {}, {}, {}, {}
while argv[spec] do
  local groups, size = argv[spec] + 0, argv[spec + 1] + 0
  spec = spec + 2
  for a = spec, spec + 6 * size - 1, 6 do
    for p = a + 2, a + 5 do
      argv[p] = argv[p] + 0
    end
  end
  for _ = 1, groups do
    local last = first + size - 1

    local allowed, a = true, spec
    for i = first, last do
      local algorithm, op, stored = argv[a], argv[a + 1], written[KEYS[i]]
      if stored then
        values[i] = stored
      else
        stored = values[i]
      end
      local fits, readable
      if algorithm == 'tb' then
        fits, readable, write[i], ttls[i] = token_bucket(stored, now, op, argv[a + 2], argv[a + 3], argv[a + 4],
          argv[a + 5])
      elseif algorithm == 'sw' then
        fits, readable, write[i], ttls[i] = sliding_window(stored, now, op, argv[a + 2], argv[a + 3], argv[a + 4],
          argv[a + 5])
      elseif algorithm == 'fw' or algorithm == 'cw' then
        local counting = algorithm == 'cw'
        fits, readable, write[i], ttls[i] = fixed_window(stored, now, op, argv[a + 2], argv[a + 3], argv[a + 4],
          argv[a + 5], counting)
        always[i] = counting and not fits
      else
        return redis.error_reply('ERR sentinel: unknown algorithm')
      end
      always[i] = always[i] or op == 'charge'
      allowed = allowed and fits
      if not readable then
        values[i] = stored and '?' or '-'
      end
      a = a + 6
    end

    local status, healed = allowed and '1' or '0', 0
    for i = first, last do
      if write[i] and (allowed or always[i]) then
        local ttl = string.format('%d', ttls[i] + extra)
        local done
        if values[i] ~= '-' then
          done = redis.pcall('SET', KEYS[i], write[i], 'PX', ttl)
          if values[i] == '?' then
            healed = healed + 1
          end
        else
          -- NX fails where MGET read nothing only when a value of another type is in the way.
          done = redis.pcall('SET', KEYS[i], write[i], 'PX', ttl, 'NX')
          if not done then
            done = redis.pcall('SET', KEYS[i], write[i], 'PX', ttl)
            healed = healed + 1
          end
        end
        if done.err then
          status, healed, refusal = '!', 0, done.err
          break
        end
        written[KEYS[i]] = write[i]
      end
    end
    if healed > 0 then
      status = string.format('%s+%d', status, healed)
    end
    statuses[#statuses + 1] = status
    first = last + 1
  end
  spec = spec + 6 * size
end

local text = time[1] .. ' ' .. time[2] .. ' ' .. table.concat(statuses, ' ') .. ' ' .. table.concat(values, ' ')
if refusal then
  return {text, refusal}
end
return text
