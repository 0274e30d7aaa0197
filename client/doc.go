// Package client talks to an mq broker: one node, a pair, or a cluster.
//
//	c, err := client.New(client.Config{Nodes: []string{"http://127.0.0.1:8080"}})
//	...
//	p, err := c.Publish(ctx, "orders", client.Record{Value: []byte("hello")}, client.PublishOptions{})
//
// # What it guarantees
//
// A publish that returned without an error is stored. It is stored once: each publish carries a request id,
// generated unless you give one, so that the client can send it again after a lost connection or a 503
// without a duplicate. To be safe across a crash of your own program, give a request id that you will
// choose again after the restart.
//
// An error is an *Error. Its Unknown says whether the call may have had its effect all the same; where it is
// false, nothing was done. A context that ends does not undo a call: then Unknown is true if the call had
// been sent. Compare an error's code with errors.Is and the Err constants.
//
// # What it never does
//
// It never sends a token or a record to a node that is not configured: redirects elsewhere are refused, and
// proxies of the environment are not used. It sends no token unencrypted beyond loopback unless told to. It
// never repeats a call that could then be done twice.
//
// # Reading
//
// Client.Fetch and Client.FetchGroup are the plain calls. A Consumer reads a topic in order, waits for new
// records, and always has the next fetch under way while you work on the records of the last.
//
// All methods of Client may be used by many goroutines at once; a Consumer is for one. A Client runs no
// goroutines of its own, a Consumer runs one until it is closed. The next stop of a publish: package httpapi
// of the server decodes and checks the request.
package client
