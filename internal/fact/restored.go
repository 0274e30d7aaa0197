package fact

import "encoding/binary"

// RestoreStep is what offsets jump to a multiple of when a log is restored from a backup. No topic gets so many
// records between a backup and the loss of the log that it was taken of, so no offset means two records.
const RestoreStep = 1_000_000_000_000

// AppendRestored appends the encoding of a KindRestored fact to dst: the log was restored from a backup, and all
// topics go on at floor, a multiple of RestoreStep above 0.
func AppendRestored(dst []byte, floor Offset) []byte {
	if floor == 0 || floor > OffsetMax || floor%RestoreStep != 0 {
		panic("BUG: a floor that is no multiple of the step reached the encoder")
	}
	return binary.AppendUvarint(dst, uint64(floor/RestoreStep))
}

// DecodeRestored decodes a KindRestored fact.
func DecodeRestored(p []byte) (floor Offset, err error) {
	c := cursor{rest: p}
	steps := c.uvarint(OffsetMax/RestoreStep, "floor")
	if steps == 0 {
		c.fail("floor")
	}
	c.end()
	if c.bad != "" {
		return 0, c.err("restored")
	}
	return Offset(steps * RestoreStep), nil
}
