// Command bare is the yardstick for the speed of a publish: the least that a durable HTTP broker can do. It
// answers POST /v1/publish with the HTTP library that mqd uses (fasthttp), decodes the body strictly, and
// appends the record to one zero-filled file with group commit: one pwrite and one fdatasync for all that
// wait. It has no topics, no request ids, no reads, no recovery, and begins again at the start of the file
// when the file is full. Never use it for anything but measuring.
//
//	go run . -listen 127.0.0.1:8099 -file ./bare.log
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/valyala/fasthttp"
)

// publish is the body of POST /v1/publish.
type publish struct {
	Topic     string `json:"topic"`
	Key       []byte `json:"key"`
	Value     []byte `json:"value"`
	RequestID string `json:"request_id"`
}

func main() {
	listen := flag.String("listen", "127.0.0.1:8099", "address to listen on")
	name := flag.String("file", "bare.log", "file to append to; it is created anew with 256 MiB of zeros")
	flag.Parse()
	if err := run(*listen, *name); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(listen, name string) error {
	log, err := createLog(name)
	if err != nil {
		return err
	}
	defer log.close()
	s := &server{log: log}
	http := &fasthttp.Server{
		Handler:                       s.handle,
		NoDefaultServerHeader:         true,
		DisableHeaderNamesNormalizing: true,
		MaxRequestBodySize:            12 << 20,
	}
	fmt.Fprintln(os.Stderr, "bare: listening on", listen)
	return http.ListenAndServe(listen)
}

type server struct {
	log  *groupLog
	next atomic.Uint64 // offset of the next record
}

func (s *server) handle(ctx *fasthttp.RequestCtx) {
	switch string(ctx.Path()) {
	case "/v1/publish":
		if ctx.IsPost() {
			s.publish(ctx)
			return
		}
		ctx.SetStatusCode(fasthttp.StatusMethodNotAllowed)
	case "/healthz", "/readyz":
		ctx.SetStatusCode(fasthttp.StatusOK)
	default:
		ctx.SetStatusCode(fasthttp.StatusNotFound)
	}
}

func (s *server) publish(ctx *fasthttp.RequestCtx) {
	var p publish
	// Duplicate names and invalid UTF-8 are refused by default, names are case-sensitive.
	if err := json.Unmarshal(ctx.PostBody(), &p, json.RejectUnknownMembers(true)); err != nil {
		ctx.Error(err.Error(), fasthttp.StatusBadRequest)
		return
	}
	if p.Topic == "" || p.Value == nil {
		ctx.Error("topic and value are required", fasthttp.StatusBadRequest)
		return
	}
	offset := s.next.Add(1) - 1
	if err := s.log.append(appendRecord(nil, offset, &p)); err != nil {
		ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
		return
	}
	ctx.SetContentType("application/json")
	body := append(make([]byte, 0, 40), `{"offset":`...)
	body = strconv.AppendUint(body, offset, 10)
	ctx.Response.SetBodyRaw(append(body, '}'))
}

// appendRecord frames a record: offset, then topic, key and value, each behind its length.
func appendRecord(dst []byte, offset uint64, p *publish) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, offset)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(p.Topic)))
	dst = append(dst, p.Topic...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(p.Key)))
	dst = append(dst, p.Key...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(p.Value)))
	return append(dst, p.Value...)
}
