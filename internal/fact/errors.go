package fact

import "errors"

// ErrMalformed: the payload is not the encoding of a fact of its kind. Behind a frame whose checksum holds
// this is no damage of the disk but a mistake of the program that wrote it.
var ErrMalformed = errors.New("malformed fact")
