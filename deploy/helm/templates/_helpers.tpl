{{- define "tollgate.labels" -}}
{ app.kubernetes.io/name: tollgate, app.kubernetes.io/instance: {{ .Release.Name | quote }} }
{{- end }}
{{- define "tollgate.secret" -}}
{{ .Values.secret.existing | default .Release.Name | quote }}
{{- end }}
