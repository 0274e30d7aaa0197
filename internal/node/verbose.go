package node

import "example.com/mq/internal/fact"

// Verbose is what /readyz?verbose tells, besides Status.
type Verbose struct {
	Status
	Scrub     ScrubStatus    `json:"scrub"`
	Damage    []Damage       `json:"damage"` // known, oldest first, not more than 100 places
	Disk      *DiskStatus    `json:"disk,omitempty"`
	Log       *LogStatus     `json:"log,omitempty"` // once it is open
	Cleaner   *CleanerStatus `json:"cleaner,omitempty"`
	Retention RetentionText  `json:"default_retention"`
}

// DiskStatus is the room on the disk.
type DiskStatus struct {
	FreeBytes  int64 `json:"free_bytes"`
	TotalBytes int64 `json:"total_bytes"`
	LowBelow   int64 `json:"low_below_bytes"`
}

// LogStatus says what there is of the log.
type LogStatus struct {
	FirstIndex    uint64 `json:"first_index"`
	LastIndex     uint64 `json:"last_index"`
	SnapshotIndex uint64 `json:"snapshot_index"`
	Segments      int    `json:"segments"`
	Bytes         int64  `json:"bytes"` // of the segments' files
}

// RetentionText is how long records are kept of topics without settings of their own; null for no limit.
type RetentionText struct {
	MS      *int64 `json:"retention_ms"`
	Bytes   *int64 `json:"retention_bytes"`
	Records *int64 `json:"retention_records"`
}

// Verbose tells all about the node that helps to find out what is wrong.
func (n *Node) Verbose() Verbose { return n.verbose(n.Status()) }

// Verbose tells all about the node that helps to find out what is wrong.
func (c *Cluster) Verbose() Verbose {
	if n := c.life.Load(); n != nil {
		return n.verbose(c.Status())
	}
	v := Verbose{Status: c.Status(), Retention: retentionText(c.cfg.Retention)}
	v.Scrub, v.Damage = c.scrubs.get()
	if v.Damage == nil {
		v.Damage = []Damage{}
	}
	return v
}

func (n *Node) verbose(s Status) Verbose {
	v := Verbose{Status: s, Retention: retentionText(n.cfg.Retention)}
	v.Scrub, v.Damage = n.scrubs.get()
	if v.Damage == nil {
		v.Damage = []Damage{}
	}
	if usage, err := n.fs.Usage(); err == nil {
		v.Disk = &DiskStatus{usage.FreeBytes, usage.TotalBytes, lowBelow(usage, n.cfg.SegmentBytes)}
	}
	if n.broker.Load() == nil {
		return v
	}
	v.Log = &LogStatus{LastIndex: uint64(n.log.Last()), SnapshotIndex: n.keeper.newest.Load()}
	for i, g := range n.log.Segments() {
		if i == 0 {
			v.Log.FirstIndex = uint64(g.First)
		}
		v.Log.Segments++
		v.Log.Bytes += g.Bytes
	}
	cleaner := n.cleaner.report()
	v.Cleaner = &cleaner
	return v
}

func retentionText(r fact.Retention) RetentionText {
	text := func(l fact.Limit) *int64 {
		if l <= 0 {
			return nil
		}
		v := int64(l)
		return &v
	}
	return RetentionText{text(r.MS), text(r.Bytes), text(r.Records)}
}
