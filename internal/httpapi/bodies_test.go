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

	api.PathTopicsConfigure: `{"topic":"t","retention_ms":3600000,"retention_bytes":null,"reset":false}`,
	api.PathTopicsList:      `{"prefix":"t","limit":10}`,
	api.PathTopicsDescribe:  `{"topic":"t"}`,
	api.PathTopicsDelete:    `{"topic":"t"}`,
	api.PathGroupsList:      `{"topic":"t","prefix":"g","limit":10}`,
	api.PathGroupsDescribe:  `{"group":"g","topic":"t"}`,
	api.PathGroupsDelete:    `{"group":"g","topic":"t"}`,
	api.PathGroupsSeek:      `{"group":"g","topic":"t","to":"start","dry_run":false}`,

	api.PathBackupBegin: `{}`,
	api.PathBackupRead:  `{"backup":"b","segment":1,"offset":0,"bytes":100}`,
	api.PathBackupEnd:   `{"backup":"b"}`,
}
