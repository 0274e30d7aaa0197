package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Network is a network namespace: processes can run in it, and clients of the test can dial from within. It has no
// name, and nothing of it is left when nobody uses it any more, however the test ends.
type Network struct {
	t      testing.TB
	file   *os.File            // the namespace
	cables map[*Network]string // the device of each cable, by the network at its other end
}

// NewNetwork makes a network that knows only itself. Where this machine cannot do that, the test is skipped.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	if os.Getuid() != 0 {
		Skip(t, "making a network namespace needs root")
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			Skip(t, err.Error())
		}
	}
	n := &Network{t: t, cables: map[*Network]string{}}
	if err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		n.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		Skip(t, err.Error())
	}
	t.Cleanup(func() { n.Close() })
	n.run("ip", "link", "set", "lo", "up")
	return n
}

// NetworkOf returns the network that a process runs in. Close it.
func NetworkOf(pid int) (*Network, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, fmt.Errorf("network of %d: %w", pid, err)
	}
	return &Network{file: file}, nil
}

// Close lets go of the network. Those that run in it go on.
func (n *Network) Close() error { return n.file.Close() }

// cable is how the names of the devices to other networks begin.
const cable = "peer"

// Join lays a cable to another network. The addresses, such as 10.0.0.1, are those of the networks, whatever cable leads
// there: a network keeps its address with each Join.
func (n *Network) Join(address string, other *Network, otherAddress string) {
	n.t.Helper()
	n.cables[other], other.cables[n] = fmt.Sprint(cable, len(n.cables)), fmt.Sprint(cable, len(other.cables))
	n.run("ip", "link", "add", n.cables[other], "type", "veth", "peer", "name", other.cables[n], "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), other.file.Fd()))
	for _, end := range []struct {
		*Network
		device, near, far string
	}{{n, n.cables[other], address, otherAddress}, {other, other.cables[n], otherAddress, address}} {
		end.run("ip", "address", "add", end.near+"/32", "dev", end.device)
		end.run("ip", "link", "set", end.device, "up")
		end.run("ip", "route", "add", end.far+"/32", "dev", end.device, "src", end.near)
	}
}

// Deafen drops all that arrives from some other networks, or from all if none is named, without a word to either side.
// What goes there still does.
func (n *Network) Deafen(others ...*Network) {
	n.t.Helper()
	devices := []string{cable + "+"}
	if len(others) > 0 {
		devices = nil
	}
	for _, o := range others {
		devices = append(devices, n.cables[o])
	}
	for _, d := range devices {
		n.run("iptables", "-w", "-A", "INPUT", "-i", d, "-j", "DROP")
	}
}

// Heal ends Deafen.
func (n *Network) Heal() {
	n.t.Helper()
	n.run("iptables", "-w", "-F", "INPUT")
}

// DialContext connects from within.
func (n *Network) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Within(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Within calls f on a thread that is in the network, and ends afterwards. What f opens stays there.
func (n *Network) Within(f func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

// Command runs a command within, and returns what it says.
func (n *Network) Command(words ...string) (said string, err error) {
	err = n.Within(func() error {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%v: %w\n%s", words, err, out)
		}
		said = string(out)
		return err
	})
	return said, err
}

// run runs a command within. It must succeed.
func (n *Network) run(words ...string) {
	n.t.Helper()
	if _, err := n.Command(words...); err != nil {
		n.t.Fatal(err)
	}
}

// enter moves this thread, which must be locked and not be used for anything else afterwards, into the network.
func (n *Network) enter() error {
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	return nil
}

// onThread calls f on a thread of its own, which ends afterwards.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}
