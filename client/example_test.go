package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"example.com/mq/client"
)

// broker stands in for a broker, so that the examples can run.
func broker(answer string) *client.Client {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer == "" {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"code":"topic_not_found","message":"the topic does not exist"}`)
			return
		}
		io.WriteString(w, answer)
	}))
	c, err := client.New(client.Config{Nodes: []string{server.URL}})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

func ExampleNew() {
	c, err := client.New(client.Config{
		// All nodes of a cluster: the client finds the leader among them, and asks nobody else.
		Nodes: []string{"https://mq1.example.com", "https://mq2.example.com", "https://mq3.example.com"},
		Token: "secret",
		Retry: client.Retry{For: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
}

func ExampleClient_Publish() {
	c := broker(`{"offset":41}`)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	// The request id comes from the work itself. So the order is stored once, even if this program crashes
	// after the call and does it all again when it is restarted.
	p, err := c.Publish(ctx, "orders", client.Record{Key: []byte("customer 7"), Value: []byte(`{"order":4711}`)},
		client.PublishOptions{RequestID: "order-4711"})
	var e *client.Error
	switch {
	case err == nil:
		fmt.Println("stored at offset", p.Offset)
	case errors.Is(err, client.ErrStorageFull):
		fmt.Println("nothing was stored, there is no room")
	case errors.As(err, &e) && e.Unknown:
		fmt.Println("it may be stored or not; publish again with request id", e.RequestID)
	default:
		fmt.Println("nothing was stored:", err)
	}
	// Output: stored at offset 41
}

func ExampleClient_Fetch() {
	c := broker(`{"records":[{"offset":41,"key":"","value":"aGVsbG8=","timestamp_ms":1767225600000}],"next_offset":42,"start_offset":0,"end_offset":42}`)
	page, err := c.Fetch(context.Background(), "orders", 41, client.FetchOptions{Limit: 10, Wait: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range page.Records {
		fmt.Printf("%d %s %s\n", r.Offset, r.Time().UTC().Format(time.DateOnly), r.Value)
	}
	fmt.Println("go on at", page.NextOffset)
	// Output:
	// 41 2026-01-01 hello
	// go on at 42
}

func ExampleConsumer() {
	c := broker(`{"records":[{"offset":0,"key":"","value":"aGVsbG8=","timestamp_ms":1767225600000}],"next_offset":1,"start_offset":0,"end_offset":1}`)
	ctx := context.Background()
	records, err := c.Consume(client.ConsumerConfig{Topic: "orders", Group: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer records.Close()
	for {
		page, err := records.NextPage(ctx)
		if err == io.EOF {
			break // with Follow, it would wait for more
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range page.Records {
			fmt.Printf("%s\n", r.Value)
		}
		// After the work, so that a crash before this line repeats the page instead of losing it.
		if err := records.Commit(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output: hello
}

func ExampleCode() {
	c := broker("")
	_, err := c.Fetch(context.Background(), "nobody", 0, client.FetchOptions{})
	fmt.Println(errors.Is(err, client.ErrTopicNotFound))
	// Output: true
}
