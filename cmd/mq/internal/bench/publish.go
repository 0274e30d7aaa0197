package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"example.com/mq/api"
)

// Publish measures producers that each publish batches of the given size, or single records when batch is 1
// and single is true.
func Publish(ctx context.Context, cfg Config, producers, batch int) (Result, error) {
	ctx, cancel := cfg.deadline(ctx)
	defer cancel()
	var (
		all     []*producer
		workers []func() error
	)
	defer func() {
		for _, p := range all {
			p.close()
		}
	}()
	for range producers {
		p, err := cfg.newProducer(ctx, makeValues(batch, cfg.Size))
		if err != nil {
			return Result{}, err
		}
		all = append(all, p)
		workers = append(workers, p.publish)
	}
	l, err := runLoad(ctx, workers, cfg.Warmup, cfg.Duration)
	if err != nil {
		return Result{}, fmt.Errorf("publish with %d producers: %w", producers, err)
	}
	if err := checkDense(all, cfg.FreshTopic); err != nil {
		return Result{}, err
	}
	return cfg.result("publish", producers, batch, l), nil
}

// producer publishes the same records again and again on its own connection.
type producer struct {
	publisher
	values [][]byte
	seen   offsets
}

// publisher sends one publish and returns the offset of its first record.
type publisher interface {
	send(values [][]byte) (first uint64, err error)
	close()
}

func (cfg *Config) newProducer(ctx context.Context, values [][]byte) (*producer, error) {
	p := &producer{values: values}
	var err error
	if cfg.NetHTTP {
		p.publisher, err = newHTTPPublisher(ctx, cfg)
	} else {
		p.publisher, err = newLeanPublisher(ctx, cfg)
	}
	return p, err
}

func (p *producer) publish() error {
	first, err := p.send(p.values)
	if err != nil {
		return err
	}
	return p.seen.add(first, len(p.values))
}

// offsets are those that one producer was given.
type offsets struct {
	count       uint64
	first, next uint64
}

// add takes the offsets of one answer, which must lie above all before.
func (o *offsets) add(first uint64, count int) error {
	if o.count == 0 {
		o.first = first
	} else if first < o.next {
		return fmt.Errorf("offset %d was answered after %d", first, o.next-1)
	}
	o.count += uint64(count)
	o.next = first + uint64(count)
	return nil
}

// checkDense says whether the producers together were given the offsets of the topic without a gap or a
// repetition: nothing was acknowledged twice or lost on the way.
func checkDense(producers []*producer, fresh bool) error {
	if !fresh || len(producers) == 0 {
		return nil
	}
	var (
		count       uint64
		first, next = ^uint64(0), uint64(0)
	)
	for _, p := range producers {
		if p.seen.count > 0 {
			count += p.seen.count
			first, next = min(first, p.seen.first), max(next, p.seen.next)
		}
	}
	if count > 0 && next-first != count {
		return fmt.Errorf("%d records were acknowledged with the offsets %d to %d", count, first, next-1)
	}
	return nil
}

// fill publishes n records of cfg.Size as fast as it can.
func (cfg *Config) fill(ctx context.Context, n int) error {
	const producers = 16
	left := atomic.Int64{}
	left.Store(int64(n))
	fault := make(chan error, producers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range producers {
		go func() { // ended by its last batch, an error, or cancel, which closes its connection
			fault <- cfg.fillFrom(ctx, &left)
		}()
	}
	var first error
	for range producers {
		if err := <-fault; err != nil && first == nil {
			first = fmt.Errorf("fill the topic: %w", err)
			cancel()
		}
	}
	return first
}

func (cfg *Config) fillFrom(ctx context.Context, left *atomic.Int64) error {
	values := makeValues(api.BatchMax, cfg.Size)
	p, err := cfg.newProducer(ctx, values)
	if err != nil {
		return err
	}
	defer p.close()
	for {
		rest := left.Add(-api.BatchMax)
		n := api.BatchMax + int(min(0, rest))
		if n <= 0 {
			return nil
		}
		if p.values = values[:n]; ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.publish(); err != nil {
			return err
		}
	}
}
