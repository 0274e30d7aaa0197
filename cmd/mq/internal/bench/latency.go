package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// deliveryMax is when a record counts as lost.
const deliveryMax = 20 * time.Second

// Latency measures the time from the call of a publish until a reader that waits for the record has decoded
// it. The next record is published once the last one was acknowledged and delivered.
func Latency(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Size < 8 {
		return Result{}, errors.New("latency: values of at least 8 bytes are needed")
	}
	ctx, cancel := cfg.deadline(ctx)
	defer cancel()
	value := makeValue(cfg.Size)
	p, err := cfg.newProducer(ctx, [][]byte{value})
	if err != nil {
		return Result{}, err
	}
	defer p.close()
	binary.LittleEndian.PutUint64(value, 0)
	if err := p.publish(); err != nil { // the topic has to exist before it can be waited on
		return Result{}, fmt.Errorf("latency: %w", err)
	}
	r, err := cfg.newReader(ctx, p.seen.next, true)
	if err != nil {
		return Result{}, err
	}

	type delivery struct {
		number uint64
		at     time.Time
		err    error
	}
	deliveries := make(chan delivery, 1)
	ended := make(chan struct{})
	go func() { // ended by the context, which closes the connection; waited for below
		defer close(ended)
		defer r.close()
		for {
			page, err := r.next()
			d := delivery{at: time.Now(), err: err}
			for i := 0; err == nil && i < len(page.Records); i++ {
				d.number = binary.LittleEndian.Uint64(page.Records[i].Value)
			}
			if err == nil && len(page.Records) == 0 {
				continue // the wait ended without a record
			}
			select {
			case deliveries <- d:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	defer func() { cancel(); <-ended }()

	var (
		number uint64
		times  histogram
		from   = time.Now().Add(cfg.Warmup)
		late   = time.NewTimer(deliveryMax)
	)
	defer late.Stop()
	exchange := func() error {
		number++
		binary.LittleEndian.PutUint64(value, number)
		start := time.Now()
		if err := p.publish(); err != nil {
			return err
		}
		if err := checkDense([]*producer{p}, cfg.FreshTopic); err != nil {
			return err // the reader would wait for the missing record
		}
		late.Reset(deliveryMax)
		select {
		case d := <-deliveries:
			if d.err != nil {
				return d.err
			}
			if d.number != number {
				return fmt.Errorf("record %d was delivered instead of %d", d.number, number)
			}
			if start.After(from) {
				times.record(d.at.Sub(start))
			}
			return nil
		case <-late.C:
			return fmt.Errorf("record %d was not delivered within %v", number, deliveryMax)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l, err := runLoad(ctx, []func() error{exchange}, cfg.Warmup, cfg.Duration)
	if err != nil {
		return Result{}, fmt.Errorf("latency: %w", err)
	}
	l.times = times
	return cfg.result("latency", 1, 1, l), nil
}
