-- Token bucket. Value: "level:at", level in microtokens as it was at the time at. The pure half of
-- algorithms/token_bucket.go, in the same order; docs/algorithms.md derives the arithmetic.
--
-- stored        string, or false when the key is absent
-- now           microseconds
-- op, cost      as in group.lua; cost in tokens
-- tokens        capacity, 1 .. 4503599627
-- n, s          refill of n tokens per s seconds = n microtokens per s microseconds; n * s <= 2^52; n = 0: none
--
-- Returns whether cost fits, whether stored was readable, and the value to write with its milliseconds to live
-- (nil: nothing to write).
local function token_bucket(stored, now, op, cost, tokens, n, s)
  local level, at
  if stored and #stored <= MAX_LENGTH then
    level, at = string.match(stored, '^(%d+):(%d+)$')
    if level then
      level, at = level + 0, at + 0
      if level > MAX_LEVEL or at > now + MAX_SKEW then
        level = nil
      end
    end
  end
  local readable = level

  local capacity = tokens * 1000000
  if not level then
    level, at = capacity, now
  elseif level > capacity then
    level = capacity
  end

  -- Refill. A clock behind at refills nothing and keeps at.
  if at < now then
    if n > 0 then
      local elapsed = now - at
      local part = elapsed % s
      local whole = (elapsed - part) / s
      local missing = capacity - level
      if whole >= missing / n then
        level = capacity
      else
        part = part * n
        level = level + math.min(missing, whole * n + (part - part % s) / s)
      end
    end
    at = now
  end

  if op == 'refund' then
    if not readable then
      return true, readable
    end
    level = math.min(capacity, level + math.min(cost, tokens) * 1000000)
    cost = 0
  end
  local fits = cost <= tokens and level >= cost * 1000000
  if op == 'peek' or (op == 'take' and not fits) then
    return fits, readable
  end
  if fits then
    level = level - cost * 1000000
  else
    level = 0
  end

  local ttl = NEVER_REFILLED
  if n > 0 then
    local missing = capacity - level
    local part = missing % n
    ttl = math.ceil(((missing - part) / n * s + math.ceil(part * s / n)) / 1000) + 1000
    if at > now then
      ttl = ttl + math.ceil((at - now) / 1000)
    end
  end
  return fits, readable, string.format('%d:%d', level, at), ttl
end
