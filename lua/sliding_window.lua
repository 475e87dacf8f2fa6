-- Sliding window. Value: "current:previous:start", hits in the window that begins at start and in the one before.
-- The pure half of algorithms/sliding_window.go, in the same order; docs/algorithms.md derives the arithmetic.
--
-- stored        string, or false when the key is absent
-- now           microseconds
-- op, cost      as in group.lua; cost in hits
-- limit         1 .. 4294967295
-- window        microseconds, 1000 .. 2^48 - 1
-- refunded      start of the window that a refund is for; 0: the current one
--
-- Returns whether cost fits, whether stored was readable, and the value to write with its milliseconds to live
-- (nil: nothing to write).
local function sliding_window(stored, now, op, cost, limit, window, refunded)
  local current, previous, start
  if stored and #stored <= MAX_LENGTH then
    current, previous, start = string.match(stored, '^(%d+):(%d+):(%d+)$')
    if current then
      current, previous, start = current + 0, previous + 0, start + 0
      if current > MAX_HITS or previous > MAX_HITS or start > now + MAX_SKEW or start % window > 0 then
        current = nil
      end
    end
  end
  local readable = current

  -- Roll over. A clock behind start stays at the start of that window.
  if not current or now - start >= 2 * window then
    current, previous, start = 0, 0, now - now % window
  elseif now - start >= window then
    current, previous, start = 0, current, start + window
  end

  if op == 'refund' then
    if not readable then
      return true, readable
    end
    if refunded == 0 or refunded == start then
      current = math.max(0, current - cost)
    elseif refunded == start - window then
      previous = math.max(0, previous - cost)
    else
      return true, readable
    end
  end

  local fits = true
  if op ~= 'refund' then
    local free = limit - current - cost
    fits = free >= 0
    if fits and free < previous then
      -- What remains of the window <= floor(free * window / previous), by long division in base 2^16: window has
      -- three digits. The clock behind start leaves more than window, and the floor is less.
      local digit = window % 65536
      local rest = (window - digit) / 65536
      local middle = rest % 65536
      local dividend = free * ((rest - middle) / 65536)
      local remainder = dividend % previous
      local share = (dividend - remainder) / previous
      dividend = remainder * 65536 + free * middle
      remainder = dividend % previous
      share = share * 65536 + (dividend - remainder) / previous
      dividend = remainder * 65536 + free * digit
      share = share * 65536 + (dividend - dividend % previous) / previous
      fits = start + window - now <= share
    end
    if op == 'peek' or (op == 'take' and not fits) then
      return fits, readable
    end
    current = math.min(MAX_HITS, current + cost)
  end

  return fits, readable, string.format('%d:%d:%d', current, previous, start),
    math.ceil((start + 2 * window - now) / 1000) + 1000
end
