package redis

import "strings"

// slotCount is how many slots the keys of a cluster are divided into.
const slotCount = 16384

// slotOf returns the slot of a key, as every server of a cluster computes it: CRC-16/XMODEM of what stands between the
// first brace and the next closing one, or of the whole key where there is no such text.
func slotOf(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return int(crc) % slotCount
}

// crc16 is the table of the polynomial x^16 + x^12 + x^5 + 1.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
