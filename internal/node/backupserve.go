package node

import (
	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
)

// BackupBegin implements httpapi.Backer.
func (n *Node) BackupBegin() (broker.BackupInfo, error) {
	b, err := n.backedUp()
	if err != nil {
		return broker.BackupInfo{}, err
	}
	return n.backups.begin(n, b)
}

// BackupRead implements httpapi.Backer.
func (n *Node) BackupRead(backup string, segment entry.Index, offset int64, p []byte) (int, error) {
	if _, err := n.backedUp(); err != nil {
		return 0, err
	}
	return n.backups.read(n, backup, segment, offset, p)
}

// BackupEnd implements httpapi.Backer.
func (n *Node) BackupEnd(backup string) error {
	if _, err := n.backedUp(); err != nil {
		return err
	}
	return n.backups.end(n, backup)
}

// backedUp returns the broker if backups are taken of this node.
func (n *Node) backedUp() (*broker.Broker, error) {
	b := n.broker.Load()
	if b == nil {
		return nil, n.notReady(false)
	}
	if n.cfg.Role == Follower {
		return nil, &broker.NotLeaderError{}
	}
	return b, nil
}

// leads returns the life that leads, or says who does.
func (c *Cluster) leads() (*Node, error) {
	n := c.life.Load()
	if n == nil || c.serving() == nil {
		return nil, c.redirect(false)
	}
	return n, nil
}

// BackupBegin implements httpapi.Backer.
func (c *Cluster) BackupBegin() (broker.BackupInfo, error) {
	n, err := c.leads()
	if err != nil {
		return broker.BackupInfo{}, err
	}
	return n.BackupBegin()
}

// BackupRead implements httpapi.Backer.
func (c *Cluster) BackupRead(backup string, segment entry.Index, offset int64, p []byte) (int, error) {
	n, err := c.leads()
	if err != nil {
		return 0, err
	}
	return n.BackupRead(backup, segment, offset, p)
}

// BackupEnd implements httpapi.Backer.
func (c *Cluster) BackupEnd(backup string) error {
	n, err := c.leads()
	if err != nil {
		return err
	}
	return n.BackupEnd(backup)
}
