package httpapi

import (
	"time"

	"example.com/mq/api"
)

// Limits in bytes.
const (
	bodyMax      = api.BodyMax
	bodySmallMax = api.BodySmallMax
	nodeMax      = 1000      // of a node's number; a cluster has fewer nodes
	prefetchMax  = 8 << 10   // fasthttp has read this much of a body before the handler runs
	chunkedFirst = 1 << 20   // first share of a body of unknown size
	headerMax    = 8 << 10   // request line and header fields; also the read buffer of a connection
	keepMax      = 64 << 10  // larger buffers do not stay with a call
	answerMin    = 512 << 10 // holds an answer with any one record
	answerMax    = 8 << 20   // holds any answer
	reserveMax   = 64        // connections beyond ConnectionsMax that may show that they come from a node
	streamsMax   = 64        // connections that other nodes have switched to a stream
	lingerMax    = 128 << 20 // read and dropped after an answer that ended the connection early
	unsentMax    = 16 << 10  // of an answer that the kernel takes before it can send it
	singleMax    = 512 << 10 // bodies up to here have a budget of their own: any publish of one record
	shownMin     = 32 << 10  // of a body must have arrived before it gets memory
)

// Limits in time.
const (
	rateMin         = 128 << 10              // bytes per second that a client must at least take or send
	reserveTimeout  = 2 * time.Second        // for a connection beyond ConnectionsMax to show that it comes from a node
	transferTimeout = 10 * time.Second       // for handing over the lead
	budgetTimeout   = 5 * time.Second        // for a share of the memory for bodies, or for answers
	workerIdle      = time.Second            // how long a goroutine waits for the next connection
	lingerTimeout   = 5 * time.Second        // for reading and dropping, in all
	lingerSilence   = time.Second            // and between two reads
	lingerStop      = 100 * time.Millisecond // how often lingering looks for a stop, and how long it goes on then
	probeEvery      = 15 * time.Second       // silence of a stream before the kernel probes it, and between two probes
)
