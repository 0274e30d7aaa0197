package fact

import "encoding/binary"

// AppendSettings appends the encoding of a KindSettings fact to dst: for how many milliseconds request ids
// are remembered, 0 to WindowMaxMS.
func AppendSettings(dst []byte, windowMS int64) []byte {
	if windowMS < 0 || windowMS > WindowMaxMS {
		panic("BUG: a window out of range reached the encoder")
	}
	return binary.AppendUvarint(dst, uint64(windowMS))
}

// DecodeSettings decodes a KindSettings fact.
func DecodeSettings(p []byte) (windowMS int64, err error) {
	c := cursor{rest: p}
	windowMS = int64(c.uvarint(WindowMaxMS, "request id window"))
	c.end()
	if c.bad != "" {
		return 0, c.err("settings")
	}
	return windowMS, nil
}

// DecodeMarker checks that a KindMarker entry carries nothing.
func DecodeMarker(p []byte) error {
	c := cursor{rest: p}
	c.end()
	return c.err("marker")
}

// DecodeChecked checks that a KindChecked entry carries nothing.
func DecodeChecked(p []byte) error {
	c := cursor{rest: p}
	c.end()
	return c.err("checked")
}
