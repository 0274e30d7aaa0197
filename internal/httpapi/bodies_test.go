package httpapi

import (
	"errors"

	"example.com/mq/api"
)

var errTest = errors.New("secret detail of the disk")

// goodBodies has a legal request for every call.
var goodBodies = map[string]string{
	api.PathPublish:      `{"topic":"t","key":"a2V5","value":"dmFsdWU="}`,
	api.PathPublishBatch: `{"topic":"t","messages":[{"key":"a2V5","value":"dmFsdWU="},{"value":""}]}`,
	api.PathFetch:        `{"topic":"t","offset":0,"limit":10}`,
	api.PathGroupsFetch:  `{"group":"g","topic":"t","limit":10}`,
	api.PathGroupsCommit: `{"group":"g","topic":"t","next_offset":0}`,
	api.PathTopicsRetain: `{"topic":"t","start_offset":0}`,
	api.PathSnapshot:     `{}`,
}
