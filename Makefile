# The usual commands. ARGS goes to torture, as in: make torture ARGS="-hours 2 -seed 17"
.PHONY: build test torture torture-short mutations

build:
	go build -o . ./cmd/mqd ./cmd/mq

test:
	go test ./...

torture:
	go run ./test/torture $(ARGS)

torture-short:
	go run ./test/torture -short $(ARGS)

mutations:
	go run ./test/mutation/cmd $(ARGS)
