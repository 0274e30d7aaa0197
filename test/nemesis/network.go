package nemesis

import (
	"errors"

	"example.com/mq/test/process"
)

// Deafen drops all that arrives in a network from some addresses, without a word to either side. What goes there still
// does. Undo ends it.
func Deafen(n *process.Network, from ...string) (Undo, error) { return refuse(n, from, "DROP") }

// Refuse answers all that arrives in a network by TCP from some addresses with a reset. Undo ends it.
func Refuse(n *process.Network, from ...string) (Undo, error) {
	return refuse(n, from, "REJECT", "--reject-with", "tcp-reset")
}

func refuse(n *process.Network, from []string, how ...string) (Undo, error) {
	rule := func(do, address string) error {
		words := []string{"iptables", "-w", do, "INPUT", "-s", address}
		if how[0] != "DROP" {
			words = append(words, "-p", "tcp")
		}
		_, err := n.Command(append(append(words, "-j"), how...)...)
		return err
	}
	var done []string
	undo := func() (err error) {
		for _, address := range done {
			err = errors.Join(err, rule("-D", address))
		}
		return err
	}
	for _, address := range from {
		if err := rule("-A", address); err != nil {
			return nil, errors.Join(err, undo())
		}
		done = append(done, address)
	}
	return undo, nil
}

// Place is a network, and its address there.
type Place struct {
	Network *process.Network
	Address string
}

// Cut makes two networks deaf to each other, and to nobody else. Undo heals it.
func Cut(a, b Place) (Undo, error) {
	one, err := Deafen(a.Network, b.Address)
	if err != nil {
		return nil, err
	}
	other, err := Deafen(b.Network, a.Address)
	if err != nil {
		return nil, errors.Join(err, one())
	}
	return func() error { return errors.Join(one(), other()) }, nil
}

// Reset resets all connections of a network to an address, at both ends if they hear each other. There is nothing to
// undo.
func Reset(n *process.Network, to string) error {
	_, err := n.Command("ss", "-K", "dst", to)
	return err
}
