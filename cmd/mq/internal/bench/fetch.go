package bench

import (
	"context"
	"fmt"
	"time"

	"example.com/mq/client"
)

// reader reads a topic in order, page by page. At the end of the topic a page has no records, unless the
// reader waits there.
type reader interface {
	next() (*client.Page, error) // the page is valid until the next call
	close()
}

func (cfg *Config) newReader(ctx context.Context, offset uint64, wait bool) (reader, error) {
	if cfg.NetHTTP {
		return newHTTPReader(ctx, cfg, offset, wait)
	}
	return newLeanReader(ctx, cfg, offset, wait)
}

// Fetch measures one reader that reads the topic from its start to its end, after publishing records of
// cfg.Size to it if fill is not 0. It ends after cfg.Duration, should it not be through by then; with a
// Duration of 0 it always reads all.
func Fetch(ctx context.Context, cfg Config, fill int) (Result, error) {
	if fill > 0 {
		if err := cfg.fill(ctx, fill); err != nil {
			return Result{}, err
		}
	}
	start, err := cfg.start(ctx)
	if err != nil {
		return Result{}, err
	}
	read, cpu := fetched{}, processorTime()
	began := time.Now()
	if err := cfg.readAll(ctx, start, &read, began); err != nil {
		return Result{}, err
	}
	cpu = processorTime() - cpu
	if fill > 0 && cfg.Duration == 0 && cfg.FreshTopic && read.records != uint64(fill) {
		return Result{}, fmt.Errorf("%d records were read of %d that were published", read.records, fill)
	}
	r := cfg.result("fetch", 0, 0, load{})
	r.Records, r.Seconds = read.records, read.last.Sub(began).Seconds()
	if read.records > 0 {
		r.Size = int(read.bytes / read.records)
	}
	r.rates(cpu)
	return r, nil
}

// fetched is what was read so far, and when the last of it came.
type fetched struct {
	records, bytes uint64
	last           time.Time
}

func (cfg *Config) readAll(ctx context.Context, start uint64, read *fetched, began time.Time) error {
	r, err := cfg.newReader(ctx, start, false)
	if err != nil {
		return err
	}
	defer r.close()
	for read.last = began; ctx.Err() == nil; {
		page, err := r.next()
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		for i := range page.Records {
			read.bytes += uint64(len(page.Records[i].Value))
		}
		read.records += uint64(len(page.Records))
		read.last = time.Now()
		if page.NextOffset == page.EndOffset || (cfg.Duration > 0 && read.last.Sub(began) >= cfg.Duration) {
			return nil
		}
	}
	return context.Cause(ctx)
}

// start is the first offset of the topic.
func (cfg *Config) start(ctx context.Context) (uint64, error) {
	c, err := cfg.newClient()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	page, err := c.Fetch(ctx, cfg.Topic, farOffset, client.FetchOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return page.StartOffset, nil
}

// farOffset is past the end of every topic: a fetch from there tells where the topic starts and ends.
const farOffset = 1<<53 - 1
