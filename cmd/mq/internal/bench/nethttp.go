package bench

import (
	"context"
	"io"

	"example.com/mq/client"
)

// newClient makes a client that does not try again: an error is to be seen.
func (cfg *Config) newClient() (*client.Client, error) {
	return client.New(client.Config{
		Nodes: cfg.Nodes, Token: cfg.Token, TLS: cfg.TLS, Retry: client.Retry{For: -1}, UnsafePlaintextTokens: true,
	})
}

// httpPublisher publishes with package client.
type httpPublisher struct {
	*client.Client
	ctx     context.Context
	topic   string
	options client.PublishOptions
	records []client.Record
}

func newHTTPPublisher(ctx context.Context, cfg *Config) (publisher, error) {
	c, err := cfg.newClient()
	if err != nil {
		return nil, err
	}
	return &httpPublisher{c, ctx, cfg.Topic, client.PublishOptions{NoRequestID: !cfg.RequestIDs}, nil}, nil
}

func (p *httpPublisher) send(values [][]byte) (first uint64, err error) {
	p.records = p.records[:0]
	for _, value := range values {
		p.records = append(p.records, client.Record{Value: value})
	}
	var published client.Published
	if len(values) == 1 {
		published, err = p.Publish(p.ctx, p.topic, p.records[0], p.options)
	} else {
		published, err = p.PublishBatch(p.ctx, p.topic, p.records, p.options)
	}
	return published.Offset, err
}

func (p *httpPublisher) close() { p.Close() }

// httpReader reads with a client.Consumer.
type httpReader struct {
	client   *client.Client
	consumer *client.Consumer
	ctx      context.Context
	offset   uint64
}

func newHTTPReader(ctx context.Context, cfg *Config, offset uint64, wait bool) (reader, error) {
	c, err := cfg.newClient()
	if err != nil {
		return nil, err
	}
	consumer, err := c.Consume(client.ConsumerConfig{Topic: cfg.Topic, Offset: offset, Follow: wait})
	if err != nil {
		return nil, err
	}
	return &httpReader{c, consumer, ctx, offset}, nil
}

func (r *httpReader) next() (*client.Page, error) {
	page, err := r.consumer.NextPage(r.ctx)
	if err == io.EOF {
		return &client.Page{NextOffset: r.offset, EndOffset: r.offset}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := checkPage(page, r.offset); err != nil {
		return nil, err
	}
	r.offset = page.NextOffset
	return page, nil
}

func (r *httpReader) close() {
	r.consumer.Close()
	r.client.Close()
}
